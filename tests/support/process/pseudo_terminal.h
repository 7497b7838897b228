#pragma once

#include <sys/types.h>

#include <string>

#include "tests/support/program.h"

namespace sluice::test {

/// A program whose stdin, stdout and stderr are a pseudo-terminal of its own.
class OnTerminal {
 public:
  /// `environment` adds NAME=VALUE to this process's environment; TERM is xterm if it is not given.
  OnTerminal(const std::string& name, const Arguments& arguments, int columns,
             const Arguments& environment = {});
  ~OnTerminal();
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  void resize(int columns) const;
  /// Returns all output once it holds `text` or the program has ended; waits a minute at most.
  const std::string& read_until(const std::string& text);
  /// Returns all output until the program ends; waits a minute at most.
  std::string finish();
  int exit_code() const { return exit_code_; }

 private:
  bool read_some();

  pid_t process_ = -1;
  int terminal_ = -1;
  int exit_code_ = -1;
  std::string drawn_;
};

}  // namespace sluice::test
