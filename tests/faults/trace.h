#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/faults/runs.h"

// Traces the system calls of a run with strace and makes some of them fail.

namespace sluice::test {

/// Returns true if strace is installed and may trace; otherwise reports the case as skipped.
bool have_strace();

struct Call {
  int thread = 0;
  std::string name;
  int number = 0;  ///< counts calls of this name in its thread from 1, as strace does
  std::vector<std::filesystem::path> paths;  ///< that the call names, by descriptor or argument
  std::string line;                          ///< as strace wrote it

  bool failed() const { return line.find(") = -1 ") != std::string::npos; }
  bool reached(const std::filesystem::path& folder) const;  ///< a file or folder inside it
  bool writes() const { return name == "write" || name == "pwrite64" || name == "writev"; }
  bool syncs() const { return name == "fsync" || name == "fdatasync"; }
};

/// Returns the calls in strace's output, in order.
std::vector<Call> parse_trace(const std::string& text);

/// Runs without disturbance into `output`. Returns the first rank's calls with these names that
/// touch the folder.
std::vector<Call> traced(const FaultRuns& runs, const std::string& output, const Arguments& names,
                         const Flags& changes = {});

/// Returns the arguments to put before the program so that strace logs its calls of these names
/// ("a,b").
Arguments tracing(const std::string& log, const std::string& names);
/// Returns the arguments to put before the program so that strace injects `what` into calls of this
/// name; `what` is as in strace's option inject, such as "signal=KILL".
Arguments injecting(const std::string& name, const std::string& what);
Arguments injecting(const Call& call, const std::string& what);

/// Selects the points that the form has time for: the short form takes every `stride`-th.
std::vector<Call> thinned(const std::vector<Call>& calls, std::size_t stride);

std::string text_of(const Call& call);

}  // namespace sluice::test
