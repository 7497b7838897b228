#pragma once

#include <string>
#include <vector>

#include "engine/shard.h"
#include "kernels/attention.h"
#include "models/decoder/config.h"

namespace sluice {

/// The shard of a decoder on one of `ranks` tensor-parallel ranks: some heads of every block, some
/// of the MLP's width and some of the vocabulary, divided by part_of().
class DecoderShard {
 public:
  DecoderShard(const DecoderConfig& config, int rank, int ranks);

  Shard::Range key_value_heads, heads, inner, vocabulary;
  /// Ranks that share a head of k and v: more than 1 if there are more ranks than such heads. Each
  /// has some of the query heads that attend to it, and an equal part of its columns.
  int sharers = 1;
  /// Range of the attention's width that belongs to these heads.
  Shard::Range width;
  /// Column ranges of the matrix that computes q, k and v, side by side, and of the MLP's first.
  std::vector<Shard::Range> qkv, mlp_in;

  /// Columns that this rank computes of q, k and v together, and of the MLP's first matrix.
  std::int64_t qkv_columns() const { return sum(qkv); }
  std::int64_t mlp_columns() const { return sum(mlp_in); }
  AttentionHeads attention_heads() const {
    return {static_cast<int>(heads.end - heads.begin),
            static_cast<int>(key_value_heads.end - key_value_heads.begin)};
  }

 private:
  static std::int64_t sum(const std::vector<Shard::Range>& ranges) {
    std::int64_t total = 0;
    for (const auto& [begin, end] : ranges)
      total += end - begin;
    return total;
  }
};

/// Returns the biases of a block on such a rank; where rows are divided, each rank has them whole.
std::int64_t bias_columns(const DecoderConfig& config, const DecoderShard& shard);

/// Returns the number of vocabulary rows that each of the ranks has.
std::vector<std::int64_t> vocabulary_counts(const DecoderConfig& config, int ranks);

/// Says with the arithmetic why a model cannot be divided between so many ranks; "" if it can. Each
/// rank needs a query head and all need equal parts of the MLP. More ranks than heads of k and v
/// must be a multiple of them, and share the columns of such a head equally. Matrices of 8-bit
/// integers are divided between blocks.
std::string division_fault(const DecoderConfig& config, int ranks);
/// Throws Error (usage) if it cannot.
void require_divisible(const DecoderConfig& config, int ranks);

}  // namespace sluice
