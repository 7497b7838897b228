#include "apps/data/loader.h"

#include <algorithm>

namespace sluice {

BatchLoader::BatchLoader(const TokenSource& tokens, const SequenceSampler& sampler,
                         std::int64_t batch, std::int64_t seq_len, std::int64_t first,
                         std::int64_t rows)
    : tokens_(tokens),
      sampler_(sampler),
      batch_(batch),
      seq_len_(seq_len),
      first_(first),
      rows_(rows > 0 ? rows : batch) {}

BatchLoader::~BatchLoader() {
  if (prefetched_.valid()) prefetched_.wait();
}

Batch BatchLoader::batch(std::int64_t step) {
  Batch result;
  if (prefetched_.valid()) {
    result = prefetched_.get();  // rethrows an error of the reading thread
    if (prefetched_step_ != step) result = read(step);
  } else {
    result = read(step);
  }
  prefetched_step_ = step + 1;
  prefetched_ = std::async(std::launch::async, [this, step] { return read(step + 1); });
  return result;
}

Batch BatchLoader::read(std::int64_t step) const {
  Batch result;
  result.first_sequence = step * batch_ + first_;
  result.tokens.reserve(static_cast<std::size_t>(rows_ * seq_len_));
  result.targets.reserve(static_cast<std::size_t>(rows_ * seq_len_));
  std::vector<std::int32_t> row(static_cast<std::size_t>(seq_len_ + 1));
  for (std::int64_t b = 0; b < rows_; ++b) {
    tokens_.read(sampler_.start_of(result.first_sequence + b), row);
    result.tokens.insert(result.tokens.end(), row.begin(), row.end() - 1);
    result.targets.insert(result.targets.end(), row.begin() + 1, row.end());
  }
  return result;
}

}  // namespace sluice
