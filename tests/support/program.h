#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

// Runs the project's programs as a user would: each in its own process, with arguments.

namespace sluice::test {

struct ProgramResult {
  int exit_code = -1;      ///< -1: ended by a signal
  int signal = 0;          ///< the signal that ended the program
  bool timed_out = false;  ///< killed here after the time limit
  std::string out, err;
};

using Arguments = std::vector<std::string>;

/// Splits the text at its spaces.
Arguments words(const std::string& text);

/// A program in progress. It runs until its standard output fills a small pipe, which nobody reads
/// before finish(). A program that prints while it works is thus held at a known place without any
/// timing.
class RunningProgram {
 public:
  /// `name` is a program of this project, or the path of another one.
  RunningProgram(const std::string& name, const Arguments& arguments, const std::string& input = {},
                 const std::filesystem::path& directory = {});
  ~RunningProgram();
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  pid_t id() const { return process_; }
  void send(int signal) const;
  /// Reads the output until the program ends, or kills its process group after `limit_seconds`.
  ProgramResult finish(int limit_seconds = 120);

 private:
  pid_t process_ = -1;
  int out_ = -1, err_ = -1;
};

ProgramResult run_program(const std::string& name, const Arguments& arguments,
                          const std::string& input = {},
                          const std::filesystem::path& directory = {});

/// Asserts that the program ended with 0 and wrote nothing to stderr; returns its output.
std::string run_well(const std::string& name, const Arguments& arguments);

/// Waits until `condition` holds; returns false after a minute.
bool eventually(const std::function<bool()>& condition);

std::size_t count_lines(const std::string& text);

}  // namespace sluice::test
