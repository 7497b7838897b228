#pragma once

#include <sys/types.h>

#include <string>

#include "tests/support/program.h"

namespace sluice::test {

/// A program whose stdin, stdout and stderr are a terminal of its own.
class OnTerminal {
 public:
  /// `environment` is added to this process's: NAME=VALUE; TERM is xterm unless it is there.
  OnTerminal(const std::string& name, const Arguments& arguments, int columns,
             const Arguments& environment = {});
  ~OnTerminal();
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  void resize(int columns) const;
  /// All that has been drawn, once it holds `text` or the program has ended; within a minute.
  const std::string& read_until(const std::string& text);
  /// All that was drawn until the end, which comes within a minute.
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
