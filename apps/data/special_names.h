#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "models/text/tokenizer.h"

namespace sluice {

/// Counts names of special tokens in text that is encoded without --special: each becomes several
/// tokens of plain text, which a chat template's text never means.
class SpecialNames {
 public:
  /// Counts nothing if `special` is set.
  SpecialNames(const Tokenizer& tokenizer, bool special)
      : tokenizer_(special || !tokenizer.has_special() ? nullptr : &tokenizer) {}

  void look_at(std::string_view text);

  /// Returns a warning if the name of a special token is there often: ten times, or once in a
  /// thousand bytes; else "". `where`: the flag that named the text.
  std::string sentence(const std::string& where) const;
  /// Prints it.
  void warn(const std::string& where) const;

 private:
  const Tokenizer* tokenizer_;  ///< null: nothing is counted
  std::uint64_t bytes_ = 0;
  std::map<std::string, std::uint64_t, std::less<>> counts_;
};

}  // namespace sluice
