#pragma once

#include "engine/ops/recall.h"
#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

struct LinearOptions {
  Recall recall{};  ///< of x: kept for the backward pass in its place
  /// Ranks that divide the weight by its columns: each has some of the outputs. Their parts of the
  /// gradient of x are added up beside the gradients of the weight.
  TensorGroup* columns = nullptr;
  /// Ranks that divide the weight by its rows: each has some of x. Their parts of the result are
  /// added up; the bias is the first rank's to add, its gradient the same for all.
  TensorGroup* rows = nullptr;
  /// See TensorGroup: of x where columns are divided, of the result where rows are.
  Shape tokens{};
};

/// x W + b over the last dimension. x: [..., in]; weight: [in, out] as Hugging Face's Conv1D stores
/// it; bias: [out] or none; result: [..., out] in x's dtype. Throws Error if the widths differ.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const LinearOptions& options = {});

/// x W^T, for a table of rows: weight: [out, in], as the tied vocabulary head uses the embedding.
/// The result has `out_dtype` (f32 makes logits exact to compare in 16-bit runs).
Tensor linear_transposed(const Tensor& x, const Tensor& weight, DType out_dtype);

}  // namespace sluice
