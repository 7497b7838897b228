#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace sluice {

/// Who can mend it; `apps/` turns the kind into the exit code (1, 2, 3).
enum class ErrorKind {
  runtime,    ///< the machine or a file: disk full, out of memory, corrupt checkpoint
  usage,      ///< what the user asked for: a flag, a value, an unsuitable file
  numerical,  ///< the training itself: a loss that is not finite
};

/// Where a check stands in the source. std::source_location would do, but clang before 16 cannot
/// read libstdc++'s, and clang-tidy and libFuzzer come with clang.
struct SourceLine {
  const char* file;
  int line;

  static constexpr SourceLine current(const char* file = __builtin_FILE(),
                                      int line = __builtin_LINE()) {
    return {file, line};
  }
};

/// The project's only exception. The message is one sentence for the user: what was wrong, the
/// value, where, and what to do. File and line are those of the check that failed.
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

/// Throws Error. Format the values into `message` at the call.
[[noreturn]] inline void fail(const std::string& message, ErrorKind kind = ErrorKind::runtime,
                              SourceLine where = SourceLine::current()) {
  throw Error(message, kind, where);
}

/// Throws Error unless `condition` holds. For messages without values; it never disappears.
inline void check(bool condition, std::string_view message,
                  SourceLine where = SourceLine::current()) {
  if (!condition) [[unlikely]]
    fail(std::string(message), ErrorKind::runtime, where);
}

}  // namespace sluice
