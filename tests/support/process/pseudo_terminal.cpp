#include "tests/support/process/pseudo_terminal.h"

#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <vector>

namespace sluice::test {
namespace {

winsize size_of_width(int columns) {
  winsize size{};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  return size;
}

}  // namespace

OnTerminal::OnTerminal(const std::string& name, const Arguments& arguments, int columns,
                       const Arguments& environment) {
  std::string path = (std::filesystem::path(SLUICE_BIN_DIR) / name).string();
  std::vector<char*> argv{path.data()};
  Arguments copies = arguments, variables = environment;
  for (auto& argument : copies)
    argv.push_back(argument.data());
  argv.push_back(nullptr);
  const winsize size = size_of_width(columns);
  process_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
  if (process_ < 0) throw std::runtime_error("cannot make a pseudo terminal");
  if (process_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  for (auto& variable : variables)
    ::putenv(variable.data());
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

OnTerminal::~OnTerminal() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ::close(terminal_);
}

void OnTerminal::resize(int columns) const {
  const winsize size = size_of_width(columns);
  ::ioctl(terminal_, TIOCSWINSZ, &size);
}

bool OnTerminal::read_some() {
  constexpr int limit_ms = 60000;
  pollfd wait{terminal_, POLLIN, 0};
  if (::poll(&wait, 1, limit_ms) <= 0) throw std::runtime_error("a minute without a word");
  char buffer[4096];
  const ssize_t got = ::read(terminal_, buffer, sizeof buffer);
  if (got <= 0) return false;  // nobody has the other end open any more
  drawn_.append(buffer, static_cast<std::size_t>(got));
  return true;
}

const std::string& OnTerminal::read_until(const std::string& text) {
  while (drawn_.find(text) == std::string::npos && read_some()) {
  }
  return drawn_;
}

std::string OnTerminal::finish() {
  while (read_some()) {
  }
  int status = 0;
  ::waitpid(process_, &status, 0);
  process_ = -1;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return drawn_;
}

}  // namespace sluice::test
