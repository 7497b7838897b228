#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "apps/data/text_source.h"
#include "models/text/tokenizer.h"

namespace sluice {

/// Encodes pairs of a prompt and a completion, each text by itself, with the tokenizer's token for
/// the beginning before them and its end-of-text token behind them, as far as it has these. The
/// tokens of the completion count as targets, and so does the end-of-text token; but not the first
/// token of a pair. A pair in which then nothing counts is left out.
class PairEncoder {
 public:
  /// `ids`, and a PairMark for each.
  using Sink =
      std::function<void(std::span<const std::int32_t> ids, std::span<const std::int32_t> marks)>;
  PairEncoder(const Tokenizer& tokenizer, bool special, Sink sink);

  /// Errors name the document.
  void add(const Document& pair);

  std::int64_t pairs() const { return pairs_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t counted() const { return counted_; }  ///< tokens that count as targets
  std::int64_t left_out() const { return left_out_; }

 private:
  const Tokenizer& tokenizer_;
  bool special_;
  Sink sink_;
  std::int64_t pairs_ = 0, tokens_ = 0, counted_ = 0, left_out_ = 0;
};

}  // namespace sluice
