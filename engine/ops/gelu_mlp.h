#pragma once

#include "engine/ops/recomputable.h"
#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

/// Weights in Conv1D's layout, [in, hidden] and [hidden, out], and their biases.
struct GeluMlpWeights {
  Tensor weight_in, bias_in;
  Tensor weight_out, bias_out;
};

/// Activations that are recomputed in the backward pass, with the same bits, instead of kept.
struct GeluMlpRecompute {
  bool gelu = false;  ///< the GELU's output, four times as wide as x in a transformer
  Recomputable x{};   ///< recomputes x, if given
};

/// Ranks that divide the hidden width. Their parts of the result are summed. Their parts of x's
/// gradient are summed while weight_in's gradients are computed. Only rank 0 adds bias_out.
struct GeluMlpGroup {
  TensorGroup* group = nullptr;
  Shape tokens{};  ///< the argument `tokens` of TensorGroup for x and the result
};

/// Feed-forward part of a transformer block, gelu(x W_in + b_in) W_out + b_out, as one op, so that
/// the GELU and its gradient can be fused with the matrix products next to them. x: [..., in].
Tensor gelu_mlp(const Tensor& x, const GeluMlpWeights& weights,
                const GeluMlpRecompute& recompute = {}, const GeluMlpGroup& ranks = {});

}  // namespace sluice
