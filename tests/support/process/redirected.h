#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>

#include "tests/support/temp_dir.h"

namespace sluice::test {

/// Lets a stream of this process, such as STDERR_FILENO, go into a file until the end of the scope.
class Redirected {
 public:
  Redirected(int stream, const std::filesystem::path& file) : stream_(stream) {
    flush();
    kept_ = ::dup(stream);
    const int instead = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (instead < 0) throw std::runtime_error("cannot write " + file.string());
    ::dup2(instead, stream);
    ::close(instead);
  }
  ~Redirected() {
    flush();
    ::dup2(kept_, stream_);
    ::close(kept_);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  static void flush() {
    std::cout.flush();
    std::fflush(nullptr);
  }

  int stream_, kept_;
};

/// Returns what `action` writes to a stream of this process.
template <class Action>
std::string written_to(int stream, Action&& action) {
  const TempDir folder;
  {
    const Redirected redirected(stream, folder.path() / "out");
    action();
  }
  return read_file(folder.path() / "out");
}

}  // namespace sluice::test
