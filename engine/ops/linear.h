#pragma once

#include "engine/ops/recall.h"
#include "engine/tensor.h"

namespace sluice {

/// x W + b over the last dimension. x: [..., in]; weight: [in, out] as Hugging Face's Conv1D stores
/// it; bias: [out] or none; result: [..., out] in x's dtype. Throws Error if the widths differ.
/// With a `recall` of x, that is kept for the backward pass and not x.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Recall& recall = {});

/// x W^T, for a table of rows: weight: [out, in], as the tied vocabulary head uses the embedding.
/// The result has `out_dtype` (f32 makes logits exact to compare in 16-bit runs).
Tensor linear_transposed(const Tensor& x, const Tensor& weight, DType out_dtype);

}  // namespace sluice
