#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <stdexcept>

namespace sluice::test {

/// A forked process that runs `body` and exits with the value that it returns. The process is
/// killed and reaped with this object. Fork before the test starts threads.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ < 0) throw std::runtime_error("cannot fork");
    if (pid_ > 0) return;
    try {
      ::_exit(body());
    } catch (...) {
      ::_exit(99);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (reaped_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }
  /// Waits until the process has ended or was stopped, without reaping it.
  void await_end_or_stop() const {
    siginfo_t info;
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WSTOPPED | WNOWAIT);
  }
  /// Waits for the end; returns the exit code, or -1 if a signal ended the process.
  int reap() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    reaped_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
  bool reaped_ = false;
};

/// Lets one forked process release another: a pipe whose reader waits for the writers to close it.
class Gate {
 public:
  Gate() {
    if (::pipe(ends_) != 0) throw std::runtime_error("cannot make a pipe");
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() {
    ::close(ends_[0]);
    open();
  }

  void open() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }
  /// Waits for open(). Call it in the process that is to wait.
  void wait() {
    open();  // closes its own copy of the write end
    char byte;
    while (::read(ends_[0], &byte, 1) > 0) {
    }
  }

 private:
  int ends_[2];
};

}  // namespace sluice::test
