#include "models/decoder/shard.h"

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace sluice {
DecoderShard::DecoderShard(const DecoderConfig& config, int rank, int ranks)
    : heads(part_of(config.n_head, rank, ranks)),
      inner(part_of(config.inner(), rank, ranks)),
      vocabulary(part_of(config.vocab_size, rank, ranks)) {
  const std::int64_t head = config.n_embd / config.n_head;
  width = {heads.begin * head, heads.end * head};
  for (const std::int64_t part : {0, 1, 2})
    qkv.push_back({part * config.n_embd + width.begin, part * config.n_embd + width.end});
}

std::vector<std::int64_t> vocabulary_counts(const DecoderConfig& config, int ranks) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    const Shard::Range part = part_of(config.vocab_size, rank, ranks);
    counts.push_back(part.end - part.begin);
  }
  return counts;
}

void require_divisible(const DecoderConfig& config, int ranks) {
  if (ranks > config.n_head)
    fail(fmt::format("--tp {}: the model has {} heads, and each rank needs one at least; use --tp "
                     "{} or fewer",
                     ranks, config.n_head, config.n_head),
         ErrorKind::usage);
  if (config.inner() % ranks != 0)
    fail(fmt::format("--tp {}: the MLP is {} wide, which does not divide: {} * {} = {}", ranks,
                     config.inner(), config.inner() / ranks, ranks, config.inner() / ranks * ranks),
         ErrorKind::usage);
  if (ranks > config.vocab_size)
    fail(fmt::format("--tp {}: the vocabulary has {} tokens, and each rank needs one at least",
                     ranks, config.vocab_size),
         ErrorKind::usage);
}

}  // namespace sluice
