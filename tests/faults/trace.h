#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/faults/runs.h"

// The system calls of a run, by strace: what they were, and how to make one of them fail.

namespace sluice::test {

/// Whether strace is there and may trace; says that the case is skipped where not.
bool have_strace();

struct Call {
  int thread = 0;
  std::string name;
  int number = 0;  ///< of this name in its thread, from 1, as strace counts
  std::vector<std::filesystem::path> paths;  ///< that it names, by descriptor or by argument
  std::string line;                          ///< as strace wrote it

  bool failed() const { return line.find(") = -1 ") != std::string::npos; }
  bool reached(const std::filesystem::path& folder) const;  ///< something in it
  bool writes() const { return name == "write" || name == "pwrite64" || name == "writev"; }
  bool syncs() const { return name == "fsync" || name == "fdatasync"; }
};

/// The calls in what strace has written, in their order.
std::vector<Call> parse_trace(const std::string& text);

/// An undisturbed run into `output` and its calls with these names (of its first rank), of which
/// those are given that reach into the folder.
std::vector<Call> traced(const FaultRuns& runs, const std::string& output, const Arguments& names,
                         const Flags& changes = {});

/// What to put before the program, so that strace writes its calls with these names, "a,b", to a
/// file.
Arguments tracing(const std::string& log, const std::string& names);
/// What to put before the program, so that strace does this to the calls of a name: `what` is as in
/// its option inject, such as "signal=KILL".
Arguments injecting(const std::string& name, const std::string& what);
Arguments injecting(const Call& call, const std::string& what);

/// Of many points those that the form has time for: every `stride`-th in the short one.
std::vector<Call> thinned(const std::vector<Call>& calls, std::size_t stride);

std::string text_of(const Call& call);

}  // namespace sluice::test
