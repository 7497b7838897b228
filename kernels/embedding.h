#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// out[b, t] = token_table[tokens[b, t] - first_row] + position_table[first_position + t]
/// tokens: [B, T] i32, each below the rows of the whole table (checked by the loader, not here);
/// token_table: [V, C]; position_table: [positions, C]; out: [B, T, C].
/// A rank that has a part of the vocabulary passes its rows as token_table. A token whose row is
/// not among them counts as a row of zeros, so that the sum over the ranks is the whole result.
struct EmbeddingForward {
  View out;
  View tokens;
  View token_table;
  View position_table{};  ///< not given: nothing is added
  std::int64_t first_position = 0;
  std::int64_t first_row = 0;  ///< index of token_table's row 0 in the whole table
};
void launch_cpu(const EmbeddingForward& op);
void launch_cuda(const EmbeddingForward& op, Stream stream);

/// Adds to both gradients (f32, f64 for f64); the caller zeroes a new gradient first. One thread
/// sums each column in token order: deterministic without atomics. Tokens whose rows are on other
/// ranks are left out of grad_token_table, but not of grad_position_table.
struct EmbeddingBackward {
  View grad_token_table{};     ///< [V, C]; not given: not computed
  View grad_position_table{};  ///< [positions, C]; not given: not computed
  View grad_out;
  View tokens;
  std::int64_t first_position = 0;
  std::int64_t first_row = 0;
  std::int64_t padding = -1;  ///< a token that adds nothing to grad_token_table; -1: none
};
void launch_cpu(const EmbeddingBackward& op);
void launch_cuda(const EmbeddingBackward& op, Stream stream);

}  // namespace sluice
