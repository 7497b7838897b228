#include "engine/process_state.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

namespace sluice {
namespace {

struct ProcStat {
  char state = '?';
  std::uint64_t started = 0;
};

std::optional<ProcStat> read_stat(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  // The second field is the program's name, which may contain spaces and parentheses.
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcStat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field)
    fields >> skipped;
  fields >> stat.started;
  if (!fields) return std::nullopt;
  return stat;
}

std::string host_name() {
  std::array<char, 256> name{};
  // gethostname may return a name that is too long without its terminating zero.
  if (::gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

std::uint64_t pid_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

}  // namespace

ProcessId this_process() {
  const auto stat = read_stat(::getpid());
  return {.pid = ::getpid(),
          .host = host_name(),
          .started = stat ? stat->started : 0,
          .namespace_ = pid_namespace()};
}

ProcessState state_of(const ProcessId& process) {
  if (process.host != host_name() || process.namespace_ != pid_namespace())
    return ProcessState::unknown;
  if (::kill(process.pid, 0) != 0 && errno == ESRCH) return ProcessState::gone;
  const auto stat = read_stat(process.pid);
  if (!stat)  // the process has ended since, or /proc cannot be read
    return ::kill(process.pid, 0) != 0 && errno == ESRCH ? ProcessState::gone
                                                         : ProcessState::running;
  if (process.started != 0 && stat->started != process.started) return ProcessState::gone;
  switch (stat->state) {
    case 'Z':
    case 'X':
      return ProcessState::gone;
    case 'T':
    case 't':
      return ProcessState::stopped;
    default:
      return ProcessState::running;
  }
}

}  // namespace sluice
