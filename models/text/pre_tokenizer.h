#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace sluice {

/// GPT-2's rule for the pieces of a text, which merges never cross: words with the space before
/// them, numbers, runs of other characters, runs of white space, and English contractions.
///
/// Text that is not valid UTF-8 is first cut into maximal runs of valid characters and of bytes
/// at which no valid character begins. A valid run is split as if it were the whole text; an
/// invalid run is one piece. So the pieces of any bytes, joined together, are those bytes.
class PreTokenizer {
 public:
  PreTokenizer();

  class Pieces;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, FreeCode> pattern_;
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

  const pcre2_real_code_8* pattern_;
  std::unique_ptr<pcre2_real_match_data_8, FreeMatch> match_;
  std::string_view rest_;  // the runs not yet begun
  std::string_view run_;   // the run being split
  std::size_t at_ = 0;     // position in run_
};

}  // namespace sluice
