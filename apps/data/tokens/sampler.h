#pragma once

#include <cstdint>

namespace sluice {

/// Maps a training sequence's global index to its tokens by a pure function. So the position in the
/// data is one number, and any number of ranks sees the same batches.
///
/// shuffled: each window of T tokens comes once per epoch, in an order keyed by (seed, epoch). The
/// windows of an epoch start at a random offset, so that their borders move.
/// sequential: step k reads tokens [k*B*T, k*B*T + B*T], row b the b-th piece of T; at the end of
/// the data it starts again.
///
/// Rows (TokenSource::row) stay whole, and each comes once per epoch.
class SequenceSampler {
 public:
  enum class Order { shuffled, sequential };

  /// `tokens` must be more than batch * seq_len, or a batch of rows; callers refuse shorter data.
  /// `row`: tokens of a row; 0: a text.
  SequenceSampler(Order order, std::uint64_t seed, std::int64_t tokens, std::int64_t batch,
                  std::int64_t seq_len, std::int64_t row = 0);

  /// Returns the first token of sequence `index`; it and the next T are inputs and targets.
  std::int64_t start_of(std::int64_t index) const;

  /// Returns the number of sequences per epoch.
  std::int64_t epoch() const { return windows_; }

 private:
  Order order_;
  std::uint64_t seed_;
  std::int64_t tokens_;
  std::int64_t seq_len_;
  std::int64_t row_;
  std::int64_t windows_;
};

/// A permutation of [0, count), computed by a Feistel network over the next power of four, which is
/// repeated until the result lies inside (Black & Rogaway, 2002, "cycle walking").
std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t key);

}  // namespace sluice
