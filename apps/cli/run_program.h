#pragma once

#include <functional>
#include <string>

namespace sluice {

/// Runs a program's body and receives signals on a thread of their own. Prints an Error as "NAME:
/// error: ..." on stderr and returns its exit code: 1 run-time failure, 2 usage, 3 numerical stop.
/// `may_report`, if given, may change the message, or return false if another process prints one.
using MayReport = std::function<bool(std::string& message, bool usage)>;
int run_program(const std::string& name, const std::function<int()>& body,
                const MayReport& may_report = {});

}  // namespace sluice
