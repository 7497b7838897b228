#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace sluice {

/// GPT-2's rule: words with the space before them, numbers, runs of other characters, runs of white
/// space, and English contractions.
extern const char* const gpt2_split;

/// The rule for the pieces of a text, which merges never cross: regular expressions in PCRE2's
/// syntax, where ^ and $ match at the ends of lines. Each cuts the pieces of the one before it. A
/// match is a piece, and so is what lies between two matches.
///
/// Text that is not valid UTF-8 is first cut into maximal runs of valid characters and of bytes
/// at which no valid character begins. A valid run is split as if it were the whole text; an
/// invalid run is one piece. So the pieces of any bytes, joined together, are those bytes.
class PreTokenizer {
 public:
  /// Throws Error (usage) for a pattern that PCRE2 refuses.
  explicit PreTokenizer(const std::vector<std::string>& patterns = {gpt2_split});

  class Pieces;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::vector<std::unique_ptr<pcre2_real_code_8, FreeCode>> patterns_;
};

/// Iterates over a text, which must outlive it, as must the PreTokenizer. One thread uses it.
class PreTokenizer::Pieces {
 public:
  Pieces(const PreTokenizer& splitter, std::string_view text);

  /// Returns the next piece, a part of the text, or nothing at its end.
  std::optional<std::string_view> next();

 private:
  struct FreeMatch {
    void operator()(pcre2_real_match_data_8* match) const;
  };

  /// A text that is being cut, from `at` on. The next match, if it is known, begins there or later.
  struct Cut {
    std::string_view text{};
    std::size_t at = 0, match = 0, match_end = 0;
  };
  std::string_view next_of(std::size_t level);

  const PreTokenizer& splitter_;
  std::unique_ptr<pcre2_real_match_data_8, FreeMatch> match_;
  std::string_view rest_;  // the runs not yet begun
  std::vector<Cut> cuts_;  // by each pattern: the run, its piece, ...
};

}  // namespace sluice
