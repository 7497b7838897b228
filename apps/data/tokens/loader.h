#pragma once

#include <cstdint>
#include <future>
#include <optional>

#include "apps/data/tokens/sampler.h"
#include "apps/data/tokens/token_source.h"

namespace sluice {

/// The sequences of one update, or a rank's share of them.
struct Batch : Sequences {
  std::int64_t first_sequence = 0;  ///< number of row 0, counted over all updates and ranks
  /// How many targets of the whole update count, those of other ranks included; none: all.
  std::optional<std::int64_t> counted{};
};

/// Batches in the sampler's order. A thread reads the next batch while the current one is used.
class BatchLoader {
 public:
  /// Reads rows [first, first + rows) of every batch of `batch` sequences (0 rows: all of them).
  BatchLoader(const TokenSource& tokens, const SequenceSampler& sampler, std::int64_t batch,
              std::int64_t seq_len, std::int64_t first = 0, std::int64_t rows = 0);
  ~BatchLoader();

  /// Returns the batch of update `step`, counted from 0. Consecutive steps are prefetched; any
  /// other is read at once.
  Batch batch(std::int64_t step);

 private:
  Batch read(std::int64_t step) const;
  std::int64_t counted_in(std::int64_t step) const;

  const TokenSource& tokens_;
  SequenceSampler sampler_;
  std::int64_t batch_;
  std::int64_t seq_len_;
  std::int64_t first_, rows_;
  std::int64_t prefetched_step_ = -1;
  std::future<Batch> prefetched_;
};

}  // namespace sluice
