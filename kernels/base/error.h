#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace sluice {

/// Says who can fix the error; `apps/` turns the kind into the exit code (1, 2, 3).
enum class ErrorKind {
  runtime,    ///< the machine or a file: disk full, out of memory, corrupt checkpoint
  usage,      ///< the request of the user: a flag, a value, an unsuitable file
  numerical,  ///< the training itself: a loss that is not finite
};

/// Source position of a check. std::source_location would serve, but clang before 16 cannot read
/// libstdc++'s, and clang-tidy and libFuzzer come with clang.
struct SourceLine {
  const char* file;
  int line;

  static constexpr SourceLine current(const char* file = __builtin_FILE(),
                                      int line = __builtin_LINE()) {
    return {file, line};
  }
};

/// The project's only exception type. The message is one sentence for the user: the problem, the
/// value, the place, and the remedy. File and line are those of the check that failed.
class Error : public std::runtime_error {
 public:
  Error(const std::string& message, ErrorKind kind, SourceLine where)
      : std::runtime_error(message), kind_(kind), where_(where) {}

  ErrorKind kind() const { return kind_; }
  const SourceLine& where() const { return where_; }

 private:
  ErrorKind kind_;
  SourceLine where_;
};

/// Throws Error. The caller formats values into `message`.
[[noreturn]] inline void fail(const std::string& message, ErrorKind kind = ErrorKind::runtime,
                              SourceLine where = SourceLine::current()) {
  throw Error(message, kind, where);
}

/// Throws Error unless `condition` holds, in every build. For messages without values.
inline void check(bool condition, std::string_view message,
                  SourceLine where = SourceLine::current()) {
  if (!condition) [[unlikely]]
    fail(std::string(message), ErrorKind::runtime, where);
}

}  // namespace sluice
