#include "parallel/flight_recorder/launcher_end.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

namespace sluice {
namespace {

struct Ancestor {
  std::string name;
  pid_t parent = 0;
};

Ancestor ancestor(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  // The second field is the name in parentheses, which may contain others.
  const auto begin = text.find('('), end = text.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  Ancestor found{.name = text.substr(begin + 1, end - begin - 1)};
  std::istringstream fields(text.substr(end + 1));
  char state = '?';
  fields >> state >> found.parent;
  return found;
}

bool is_launcher(std::string_view name) {
  constexpr std::array names{"mpirun",        "mpiexec",     "orterun",       "orted",
                             "prterun",       "prted",       "mpiexec.hydra", "hydra_pmi_proxy",
                             "mpiexec.mpich", "mpirun.mpich"};
  // /proc has the first 15 characters of a name.
  return std::ranges::any_of(names,
                             [&](std::string_view known) { return name == known.substr(0, 15); });
}

/// Returns a handle of the launcher's process, which no other process can get later; -1: none.
int launcher() {
  pid_t pid = ::getppid();
  for (int generation = 0; generation < 5 && pid > 1; ++generation) {
    const Ancestor found = ancestor(pid);
    if (is_launcher(found.name)) return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    pid = found.parent;
  }
  return -1;
}

// From here on a process without the other threads: only calls of the system.

void pause_for(long milliseconds) {
  timespec left{.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
  while (::nanosleep(&left, &left) != 0) {
  }
}

[[noreturn]] void end_launcher(int process, long patience) {
  ::setsid();  // a launcher kills what its ranks have started
  ::syscall(SYS_dup3, process, 0, 0);
  ::syscall(SYS_close_range, 1U, ~0U, 0);  // a pipe to the launcher would keep it waiting
  pause_for(patience);
  ::syscall(SYS_pidfd_send_signal, 0, SIGKILL, nullptr, 0);
  ::_exit(0);
}

}  // namespace

void end_launcher_after(std::chrono::seconds patience) {
  const int process = launcher();
  if (process < 0) return;
  const long milliseconds = std::chrono::milliseconds(patience).count();
  const pid_t child = ::fork();
  if (child == 0) {
    if (::fork() == 0) end_launcher(process, milliseconds);
    ::_exit(0);
  }
  if (child > 0) ::waitpid(child, nullptr, 0);
  ::close(process);
}

}  // namespace sluice
