#include "apps/data/tokens/loader.h"

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
  for (std::int64_t b = 0; b < rows_; ++b)
    append_sequence(tokens_, sampler_.start_of(result.first_sequence + b), seq_len_, result);
  if (tokens_.in_rows()) result.counted = counted_in(step);
  return result;
}

std::int64_t BatchLoader::counted_in(std::int64_t step) const {
  std::int64_t counted = 0;
  for (std::int64_t b = 0; b < batch_; ++b)
    counted += counted_targets(tokens_, sampler_.start_of(step * batch_ + b), seq_len_);
  return counted;
}

}  // namespace sluice
