#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

// Runs the project's programs as a user would: a process of its own with arguments.

namespace sluice::test {

struct ProgramResult {
  int exit_code = -1;      ///< -1: ended by a signal
  int signal = 0;          ///< that ended it
  bool timed_out = false;  ///< killed here after the time limit
  std::string out, err;
};

using Arguments = std::vector<std::string>;

/// The text cut at its spaces.
Arguments words(const std::string& text);

/// A program that has been started. It can go on until its standard output fills a small pipe,
/// which nobody empties before finish(): a program that prints while it works is so held at a known
/// place without any timing.
class RunningProgram {
 public:
  /// `name` is that of a program of this project, or the path of another.
  RunningProgram(const std::string& name, const Arguments& arguments, const std::string& input = {},
                 const std::filesystem::path& directory = {});
  ~RunningProgram();
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  pid_t id() const { return process_; }
  void send(int signal) const;
  /// Reads what it prints until it ends, or kills it and its process group after `limit_seconds`.
  ProgramResult finish(int limit_seconds = 120);

 private:
  pid_t process_ = -1;
  int out_ = -1, err_ = -1;
};

ProgramResult run_program(const std::string& name, const Arguments& arguments,
                          const std::string& input = {},
                          const std::filesystem::path& directory = {});

/// Asserts that it ended with 0 and wrote nothing to stderr; returns what it printed.
std::string run_well(const std::string& name, const Arguments& arguments);

/// Waits until `condition` holds; false after a minute.
bool eventually(const std::function<bool()>& condition);

std::size_t count_lines(const std::string& text);

}  // namespace sluice::test
