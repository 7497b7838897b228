#pragma once

#include "engine/ops/recomputable.h"
#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

/// LayerNorm over the last dimension. x: [..., width]; weight, bias: [width].
Tensor layernorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon);

/// Residual addition and the LayerNorm that follows it, in one pass over memory.
struct ResidualNorm {
  Tensor sum;         ///< stream + branch
  Tensor normalized;  ///< LayerNorm(sum)
  /// Recomputes `normalized` from tensors that the LayerNorm keeps anyway; for the op that consumes
  /// it. None if nothing is recorded.
  Recomputable recomputable{};
};
/// The sum is the stream itself if there is no branch. `group`: ranks that divide the tokens; the
/// gradients of weight and bias are summed over them.
ResidualNorm residual_layernorm(const Tensor& stream, const Tensor& branch, const Tensor& weight,
                                const Tensor& bias, double epsilon, TensorGroup* group = nullptr);

}  // namespace sluice
