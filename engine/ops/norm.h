#pragma once

#include "engine/ops/recomputable.h"
#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

/// LayerNorm over the last dimension. x: [..., width]; weight, bias: [width]. The bias may be none.
Tensor layernorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon);
/// RMSNorm over the last dimension: nothing is subtracted or added.
Tensor rmsnorm(const Tensor& x, const Tensor& weight, double epsilon);

enum class NormKind : std::uint8_t { layernorm, rmsnorm };

/// Weights of a norm, [width] each. RMSNorm has no bias, and LayerNorm need not have one.
struct NormWeights {
  Tensor weight;
  Tensor bias{};
  NormKind kind = NormKind::layernorm;
};

/// Residual addition and the LayerNorm or RMSNorm that follows it, in one pass over memory.
struct ResidualNorm {
  Tensor sum;         ///< stream + branch
  Tensor normalized;  ///< the norm of sum
  /// Recomputes `normalized` from tensors that the norm keeps anyway; for the op that consumes
  /// it. None if nothing is recorded.
  Recomputable recomputable{};
};
/// The sum is the stream itself if there is no branch. `group`: ranks that divide the tokens; the
/// gradients of weight and bias are summed over them.
ResidualNorm residual_norm(const Tensor& stream, const Tensor& branch, const NormWeights& weights,
                           double epsilon, TensorGroup* group = nullptr);

}  // namespace sluice
