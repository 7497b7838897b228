#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/data/sampler.h"

namespace sluice {

/// The sequences of one update, or a rank's share of them: row b has its T tokens and, shifted by
/// one, its T targets.
struct Batch {
  std::int64_t first_sequence = 0;    ///< number of row 0, counted over all updates and ranks
  std::vector<std::int32_t> tokens;   ///< [B, T]
  std::vector<std::int32_t> targets;  ///< [B, T]
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

  const TokenSource& tokens_;
  SequenceSampler sampler_;
  std::int64_t batch_;
  std::int64_t seq_len_;
  std::int64_t first_, rows_;
  std::int64_t prefetched_step_ = -1;
  std::future<Batch> prefetched_;
};

}  // namespace sluice
