#include "models/decoder/shard.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/error.h"
#include "kernels/quantized.h"

namespace sluice {
namespace {

/// True if some ranks can share a head of k and v: its query heads, and its columns equally.
bool can_share(const DecoderConfig& config, std::int64_t ranks) {
  const std::int64_t sharers = ranks / config.kv_heads();
  return ranks % config.kv_heads() == 0 && sharers <= config.n_head / config.kv_heads() &&
         config.width_of_head() % sharers == 0;
}

/// True if all ranks get query heads with their heads of k and v.
bool divides_heads(const DecoderConfig& config, std::int64_t ranks) {
  return ranks <= config.kv_heads() || (ranks <= config.n_head && can_share(config, ranks));
}

/// Returns a column at which ranks divide a matrix of 8-bit integers within a block of columns that
/// share a scale; 0: they divide none so. Such a rank would round other values than one rank.
std::int64_t divided_block(const DecoderConfig& config, int ranks) {
  if (!config.lora.int8_base) return 0;
  for (int rank = 1; rank < ranks; ++rank) {
    const DecoderShard shard(config, rank, ranks);
    std::vector<Shard::Range> columns{shard.width, shard.inner};
    if (config.layout == WeightLayout::in_out) {
      columns = shard.qkv;
      columns.insert(columns.end(), shard.mlp_in.begin(), shard.mlp_in.end());
    }
    for (const Shard::Range& range : columns)
      if (range.begin % quantized_block != 0) return range.begin;
  }
  return 0;
}

/// "1, 2, 4"
std::string usable_ranks(const DecoderConfig& config) {
  std::vector<std::int64_t> usable;
  for (std::int64_t ranks = 1; ranks <= config.n_head; ++ranks)
    if (divides_heads(config, ranks) && config.inner() % ranks == 0 &&
        divided_block(config, static_cast<int>(ranks)) == 0)
      usable.push_back(ranks);
  return fmt::format("{}", fmt::join(usable, ", "));
}

}  // namespace

DecoderShard::DecoderShard(const DecoderConfig& config, int rank, int ranks)
    : key_value_heads(part_of(config.kv_heads(), rank, ranks)),
      inner(part_of(config.inner(), rank, ranks)),
      vocabulary(part_of(config.vocab_size, rank, ranks)) {
  const std::int64_t head = config.width_of_head(), group = config.n_head / config.kv_heads();
  heads = {key_value_heads.begin * group, key_value_heads.end * group};
  Shard::Range columns{key_value_heads.begin * head, key_value_heads.end * head};
  if (ranks > config.kv_heads()) {
    sharers = ranks / static_cast<int>(config.kv_heads());
    const std::int64_t shared = rank / sharers;
    const Shard::Range of_group = part_of(group, rank % sharers, sharers);
    const Shard::Range of_head = part_of(head, rank % sharers, sharers);
    key_value_heads = {shared, shared + 1};
    heads = {shared * group + of_group.begin, shared * group + of_group.end};
    columns = {shared * head + of_head.begin, shared * head + of_head.end};
  }
  width = {heads.begin * head, heads.end * head};
  if (config.fused_heads) {
    qkv = {{3 * width.begin, 3 * width.end}};
  } else {
    qkv = {width};
    for (const std::int64_t first :
         {config.query_width(), config.query_width() + config.key_width()})
      qkv.push_back({first + columns.begin, first + columns.end});
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

std::string division_fault(const DecoderConfig& config, int ranks) {
  if (ranks > config.n_head)
    return fmt::format("the model has {} head{}, and each rank needs one at least; use --tp {}",
                       config.n_head, config.n_head == 1 ? "" : "s", usable_ranks(config));
  if (!divides_heads(config, ranks))
    return fmt::format(
        "{} heads of k and v {} wide cannot be shared equally by {} ranks; use --tp {}",
        config.kv_heads(), config.width_of_head(), ranks, usable_ranks(config));
  if (config.inner() % ranks != 0)
    return fmt::format("the MLP is {} wide, which does not divide: {} * {} = {}; use --tp {}",
                       config.inner(), config.inner() / ranks, ranks,
                       config.inner() / ranks * ranks, usable_ranks(config));
  if (const std::int64_t column = divided_block(config, ranks); column != 0)
    return fmt::format(
        "a matrix of 8-bit integers would be divided at column {}, and {} neighbouring columns "
        "share a scale; use --tp {}, or leave --int8-base out",
        column, quantized_block, usable_ranks(config));
  if (ranks > config.vocab_size)
    return fmt::format("the vocabulary has {} tokens, and each rank needs one at least",
                       config.vocab_size);
  return {};
}

void require_divisible(const DecoderConfig& config, int ranks) {
  const std::string fault = division_fault(config, ranks);
  if (!fault.empty()) fail(fmt::format("--tp {}: {}", ranks, fault), ErrorKind::usage);
}

}  // namespace sluice
