#pragma once

#include "engine/ops/recall.h"
#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

/// LayerNorm over the last dimension. x: [..., width]; weight, bias: [width].
Tensor layernorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon);

/// The residual addition and the LayerNorm after it, in one pass over memory.
struct ResidualNorm {
  Tensor sum;         ///< stream + branch
  Tensor normalized;  ///< LayerNorm(sum)
  /// Of `normalized`, from what the LayerNorm keeps anyhow; for the op that takes it. None when
  /// nothing is recorded.
  Recall recall{};
};
/// Without a branch the sum is the stream. Where ranks divide the tokens, the gradients of weight
/// and bias are added up over the `group`.
ResidualNorm residual_layernorm(const Tensor& stream, const Tensor& branch, const Tensor& weight,
                                const Tensor& bias, double epsilon, TensorGroup* group = nullptr);

}  // namespace sluice
