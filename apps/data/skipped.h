#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

/// Counts what was left out of the data, by reason, for a message.
class Skipped {
 public:
  /// `one` and `many` name the kind of thing: "empty file", "empty files".
  void add(const std::string& one, const std::string& many, const std::string& name);
  void add(const Skipped& others);

  bool none() const { return reasons_.empty(); }
  /// Returns "1 empty file (a.txt), 3 files of other kinds (first: b.png)".
  std::string text() const;

 private:
  struct Reason {
    std::string one, many, first;
    std::int64_t count = 0;
  };
  void add(const Reason& reason);

  std::vector<Reason> reasons_;
};

}  // namespace sluice
