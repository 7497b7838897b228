#pragma once

#include <cstdint>

#include "engine/documents.h"
#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

struct EmbeddingOptions {
  /// Ranks that divide the rows of the token table; this rank's part begins with vocabulary row
  /// `first_row`. Rank 0 of the group adds the positions, whose gradient is the same on all ranks.
  TensorGroup* group = nullptr;
  std::int64_t first_row = 0;
  Shape divided{};  ///< the argument `tokens` of TensorGroup for the result
  Documents documents{};
  std::int64_t padding = -1;  ///< a token whose row gets no gradient, as padding_idx of PyTorch
};

/// token_table[tokens] + position_table[first_position + t], or without the latter if there is no
/// table of positions; t counts from the beginning of a document. tokens: [B, T] i32; result: [B,
/// T, C] in the tables' dtype. Token ids are not checked here; the code that read them has done so.
Tensor embedding(const Tensor& tokens, const Tensor& token_table, const Tensor& position_table,
                 const EmbeddingOptions& options = {});

}  // namespace sluice
