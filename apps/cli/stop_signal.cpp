#include "apps/cli/stop_signal.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "kernels/base/error.h"
#include "parallel/flight_recorder/taken_signals.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

struct Named {
  int signal;
  const char* name;
};
constexpr std::array stops{Named{SIGINT, "SIGINT"},   Named{SIGTERM, "SIGTERM"},
                           Named{SIGHUP, "SIGHUP"},   Named{SIGUSR1, "SIGUSR1"},
                           Named{SIGUSR2, "SIGUSR2"}, Named{SIGXCPU, "SIGXCPU"},
                           Named{SIGPWR, "SIGPWR"}};
// SIGXFSZ: a write beyond the file-size limit fails with EFBIG instead, as on a full disk, so that
// the path and the reason are reported.
constexpr std::array idle{SIGPROF, SIGALRM, SIGVTALRM, SIGIO, SIGXFSZ};
constexpr std::array never_blocked{SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,  SIGTRAP, SIGSYS,
                                   SIGABRT, SIGPIPE, SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT};

/// A repeated signal within this time counts as the same request: programs that start others
/// forward a terminal's signal although the terminal has sent it to all processes.
constexpr auto one_request = 500ms;
/// For so long after the end of a StopSignal such signals change nothing: the training has ended,
/// and the process frees memory and takes leave of other ranks. Later they end it, should it hang.
constexpr auto closing = 5s;
/// The longest wait for the last answer before the process ends; stdout may be blocked.
constexpr auto last_words = 300ms;

/// State of the one StopSignal there may be, shared by the receiving thread, the training and the
/// thread that prints answers.
struct Request {
  std::mutex mutex;
  std::condition_variable changed;
  bool taken = false;  ///< a StopSignal exists; otherwise a signal ends the process
  std::optional<Clock::time_point> left_at;  ///< the end of the last StopSignal
  StopSignal::Answer answer;
  std::string doing;
  std::atomic<const Named*> first{nullptr};
  Clock::time_point first_at;
  std::deque<std::string> answers;  ///< the front one stays until it is printed
};

Request& request() {
  static Request& only = *new Request;  // the receiving thread outlives main
  return only;
}

[[noreturn]] void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(signal);
  _exit(128 + signal);
}

void receive(const Named& signal) {
  Request& r = request();
  std::unique_lock lock(r.mutex);
  if (!r.taken) {
    if (r.left_at && Clock::now() - *r.left_at < closing) return;
    end_by(signal.signal);
  }
  const Named* const first = r.first;
  const bool again = first == &signal && Clock::now() - r.first_at > one_request;
  if (first != nullptr && !again) return;
  r.answers.push_back(r.answer(signal.name, again, r.doing));
  if (first == nullptr) {
    r.first_at = Clock::now();
    r.first = &signal;  // from here on the training may stop
  }
  r.changed.notify_all();
  if (!again) return;
  r.changed.wait_for(lock, last_words, [&] { return r.answers.empty(); });
  end_by(signal.signal);
}

[[noreturn]] void receive_all(const sigset_t& waited_for) {
  // All other signals arrive on this thread, and are handled as usual.
  pthread_sigmask(SIG_SETMASK, &waited_for, nullptr);
  while (true) {
    int number = 0;
    if (sigwait(&waited_for, &number) != 0) continue;
    for (const Named& stop : stops)
      if (stop.signal == number) receive(stop);
  }
}

/// SIGBUS: an address has no memory behind it. The instruction that touched it raises the signal on
/// its own thread, and nothing resumes after it. So this one handler may run on a thread that
/// computes.
extern "C" void lost_memory(int) {
  constexpr std::string_view sentence =
      "error: memory is gone that a file or a file system in memory stands for: a file was cut "
      "while it was in use, or /dev/shm, which ranks share, is full, or a device failed\n";
  [[maybe_unused]] const auto told = ::write(STDERR_FILENO, sentence.data(), sentence.size());
  _exit(1);
}

void tell_of_lost_memory() {
  take_back_signal(SIGBUS);
  struct sigaction action {};
  sigaction(SIGBUS, nullptr, &action);
  if (action.sa_handler != SIG_DFL) return;  // a sanitizer's handler reports more
  action.sa_handler = lost_memory;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

void receive_signals_on_one_thread() {
  tell_of_lost_memory();
  take_back_signal(SIGHUP);
  sigset_t waited_for;
  sigemptyset(&waited_for);
  const auto disposition = [](int signal) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    return action.sa_handler;
  };
  for (const Named& stop : stops)
    if (disposition(stop.signal) == SIG_DFL) sigaddset(&waited_for, stop.signal);
  for (const int signal : idle)
    if (disposition(signal) == SIG_DFL) std::signal(signal, SIG_IGN);
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int signal : never_blocked)
    sigdelset(&blocked, signal);
  pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  request();
  std::thread([waited_for] {
    pthread_setname_np(pthread_self(), "sluice-signals");
    receive_all(waited_for);
  }).detach();
}

StopSignal::StopSignal(Answer answer, Print print) {
  Request& r = request();
  const std::lock_guard lock(r.mutex);
  check(!r.taken, "there is a StopSignal already");
  r.taken = true;
  r.answer = std::move(answer);
  r.doing.clear();
  r.first = nullptr;
  r.answers.clear();
  printer_ = std::thread([print = std::move(print), &r] {
    std::unique_lock held(r.mutex);
    while (true) {
      r.changed.wait(held, [&] { return !r.taken || !r.answers.empty(); });
      if (r.answers.empty()) return;  // answers are printed even if the StopSignal ends
      const std::string text = r.answers.front();
      held.unlock();  // printing may take long; the next signal must not wait for it
      print(text);
      held.lock();
      r.answers.pop_front();
      r.changed.notify_all();
    }
  });
}

StopSignal::~StopSignal() {
  Request& r = request();
  {
    const std::lock_guard lock(r.mutex);
    r.taken = false;
    r.left_at = Clock::now();
    r.changed.notify_all();
  }
  printer_.join();
}

void StopSignal::note(std::string doing) {
  Request& r = request();
  const std::lock_guard lock(r.mutex);
  r.doing = std::move(doing);
}

const char* StopSignal::received() {
  const Named* const first = request().first;
  return first != nullptr ? first->name : nullptr;
}

}  // namespace sluice
