#pragma once

#include <vector>

#include "engine/shard.h"
#include "models/gpt2/config.h"

namespace sluice {

/// What one of `ranks` tensor-parallel ranks has of a GPT-2: some of every block's heads, of the
/// MLP's width and of the vocabulary, as part_of says.
struct GPT2Shard {
  GPT2Shard(const GPT2Config& config, int rank, int ranks);

  Shard::Range heads, inner, vocabulary;
  /// Of the attention's width, which is the heads'.
  Shard::Range width;
  /// Columns of the matrix that makes q, k and v, side by side.
  std::vector<Shard::Range> qkv;
};

/// Rows of the vocabulary that each of the ranks has.
std::vector<std::int64_t> vocabulary_counts(const GPT2Config& config, int ranks);

/// Throws Error (usage) with the arithmetic where a model cannot be divided between so many ranks:
/// each has a head at least, and all have as much of the MLP.
void require_divisible(const GPT2Config& config, int ranks);

}  // namespace sluice
