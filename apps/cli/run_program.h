#pragma once

#include <functional>
#include <string>

namespace sluice {

class World;

/// Runs a program's body and receives signals on a thread of their own. Prints an Error as "NAME:
/// error: ..." on stderr and returns its exit code: 1 run-time failure, 2 usage, 3 numerical stop.
/// A program that has done all else, but could not write all of its standard output, says so and
/// returns 1; if the reader has closed it, as head does, it says nothing and returns 0.
/// `may_report`, if given, may change the message, or return false if another process prints one.
using MayReport = std::function<bool(std::string& message, int exit_code)>;
int run_program(const std::string& name, const std::function<int()>& body,
                const MayReport& may_report = {});

/// Prints an error as run_program() does.
void print_error(const std::string& name, const std::string& message);

/// The same for a program whose ranks mpirun may start. Only rank 0 prints. A rank that fails ends
/// the whole job, after it has given rank 0 time to print its own error.
int run_ranks(const std::string& name, const std::function<void(const World&)>& body);

}  // namespace sluice
