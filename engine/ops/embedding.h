#pragma once

#include <cstdint>

#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

struct EmbeddingOptions {
  std::int64_t first_position = 0;
  /// Ranks that divide the rows of the token table, which begins with row `first_row` of the
  /// vocabulary here. The first of them adds the positions, whose gradient is the same for all.
  TensorGroup* group = nullptr;
  std::int64_t first_row = 0;
  Shape divided{};  ///< `tokens` of the result; see TensorGroup
};

/// token_table[tokens] + position_table[first_position + t]. tokens: [B, T] i32; result: [B, T, C]
/// in the tables' dtype. Token ids are trusted: whoever read them has checked their range.
Tensor embedding(const Tensor& tokens, const Tensor& token_table, const Tensor& position_table,
                 const EmbeddingOptions& options = {});

}  // namespace sluice
