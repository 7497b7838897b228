#include "models/decoder/shard.h"

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace sluice {
DecoderShard::DecoderShard(const DecoderConfig& config, int rank, int ranks)
    : key_value_heads(part_of(config.kv_heads(), rank, ranks)),
      inner(part_of(config.inner(), rank, ranks)),
      vocabulary(part_of(config.vocab_size, rank, ranks)) {
  const std::int64_t head = config.width_of_head(), group = config.n_head / config.kv_heads();
  heads = {key_value_heads.begin * group, key_value_heads.end * group};
  width = {heads.begin * head, heads.end * head};
  if (config.fused_heads) {
    qkv = {{3 * width.begin, 3 * width.end}};
  } else {
    qkv = {width};
    for (const std::int64_t first :
         {config.query_width(), config.query_width() + config.key_width()})
      qkv.push_back({first + key_value_heads.begin * head, first + key_value_heads.end * head});
  }
  mlp_in = {inner};
  if (config.activation == MlpActivation::swiglu)
    mlp_in.push_back({config.inner() + inner.begin, config.inner() + inner.end});
}

std::int64_t bias_columns(const DecoderConfig& config, const DecoderShard& shard) {
  return (config.qkv_bias ? shard.qkv_columns() : 0) + (config.output_bias ? config.n_embd : 0) +
         (config.mlp_bias ? shard.mlp_columns() + config.n_embd : 0);
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
  if (ranks > config.kv_heads())
    fail(
        fmt::format("--tp {}: the model has {} {}head{}, and each rank needs one at least; use "
                    "--tp {} or fewer",
                    ranks, config.kv_heads(), config.kv_heads() < config.n_head ? "key/value " : "",
                    config.kv_heads() == 1 ? "" : "s", config.kv_heads()),
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
