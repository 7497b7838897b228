#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace sluice {

/// Identifies a process so that another process can find it again. The pid alone is not enough:
/// pids are reused, and one host can have several pid namespaces (containers).
struct ProcessId {
  pid_t pid = 0;
  std::string host;
  std::uint64_t started = 0;     ///< clock ticks since the host's boot; 0: not known
  std::uint64_t namespace_ = 0;  ///< pid namespace in which `pid` counts; 0: not known
};

enum class ProcessState {
  running,
  stopped,  ///< by a signal such as SIGSTOP, or held by a debugger
  gone,     ///< ended, whether or not its parent has noticed
  unknown   ///< it is on another host or in another container
};

ProcessId this_process();
ProcessState state_of(const ProcessId& process);

}  // namespace sluice
