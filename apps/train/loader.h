#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include "apps/train/dataset.h"
#include "apps/train/sampler.h"

namespace sluice {

/// The sequences of one update, or a rank's share of them: row b has its T tokens and, one further,
/// its T targets.
struct Batch {
  std::int64_t first_sequence = 0;    ///< of row 0, counted over all updates and ranks
  std::vector<std::int32_t> tokens;   ///< [B, T]
  std::vector<std::int32_t> targets;  ///< [B, T]
};

/// Batches in the sampler's order; while one is trained on, a thread reads the next.
class BatchLoader {
 public:
  /// Rows [first, first + rows) of every batch of `batch` sequences: one rank's share. 0 rows: all.
  BatchLoader(const TokenSource& tokens, const SequenceSampler& sampler, std::int64_t batch,
              std::int64_t seq_len, std::int64_t first = 0, std::int64_t rows = 0);
  ~BatchLoader();

  /// The batch of update `step`, counted from 0. Steps in order are ready in advance; any other
  /// is read at once.
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
