#pragma once

#include <vector>

#include "engine/shard.h"
#include "models/decoder/config.h"

namespace sluice {

/// The shard of a GPT-2 on one of `ranks` tensor-parallel ranks: some heads of every block, some of
/// the MLP's width and some of the vocabulary, divided by part_of().
struct DecoderShard {
  DecoderShard(const DecoderConfig& config, int rank, int ranks);

  Shard::Range heads, inner, vocabulary;
  /// Range of the attention's width that belongs to these heads.
  Shard::Range width;
  /// Column ranges of the matrix that computes q, k and v, side by side.
  std::vector<Shard::Range> qkv;
};

/// Returns the number of vocabulary rows that each of the ranks has.
std::vector<std::int64_t> vocabulary_counts(const DecoderConfig& config, int ranks);

/// Throws Error (usage) with the arithmetic if a model cannot be divided between so many ranks:
/// each rank needs a head, and all need equal parts of the MLP.
void require_divisible(const DecoderConfig& config, int ranks);

}  // namespace sluice
