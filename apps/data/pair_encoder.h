#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "apps/data/text_source.h"
#include "apps/data/turns.h"
#include "models/text/tokenizer.h"

namespace sluice {

struct PairCounts {
  std::int64_t pairs = 0, tokens = 0;
  std::int64_t counted = 0;   ///< tokens that count as targets
  std::int64_t left_out = 0;  ///< pairs
};

/// Encodes pairs of a prompt and a completion, each text by itself, with the tokenizer's token for
/// the beginning before them and its end-of-text token behind them, as far as it has these. The
/// tokens of the completion count as targets, and so does the end-of-text token; but not the first
/// token of a pair. A pair in which then nothing counts is left out.
class PairEncoder {
 public:
  /// `ids`, and a PairMark for each.
  using Sink =
      std::function<void(std::span<const std::int32_t> ids, std::span<const std::int32_t> marks)>;
  /// Only the turns of this rank go to `sink`; the ranks add the same pairs.
  PairEncoder(const Tokenizer& tokenizer, bool special, Sink sink, Turns turns = {});

  /// Errors name the document.
  void add(const Document& pair);

  /// Returns the counts of this rank's turns.
  const PairCounts& counts() const { return counts_; }

 private:
  void encode_pair(const Document& pair);

  const Tokenizer& tokenizer_;
  bool special_;
  Sink sink_;
  Turns turns_;
  PairCounts counts_;
};

}  // namespace sluice
