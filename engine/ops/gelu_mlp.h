#pragma once

#include "engine/ops/recall.h"
#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

/// Weights as Conv1D stores them: [in, hidden] and [hidden, out], with their biases.
struct GeluMlpWeights {
  Tensor weight_in, bias_in;
  Tensor weight_out, bias_out;
};

/// What is not kept for the backward pass but computed again there, with the same bits.
struct GeluMlpRecompute {
  bool gelu = false;  ///< the output of the GELU, four times as wide as x in a transformer
  Recall x{};         ///< x, if given
};

/// Ranks that divide the hidden width. Their parts of the result are added up, and those of the
/// gradient of x beside the gradients of weight_in; the first rank alone adds bias_out.
struct GeluMlpGroup {
  TensorGroup* group = nullptr;
  Shape tokens{};  ///< of x and of the result; see TensorGroup
};

/// The feed-forward part of a transformer block, gelu(x W_in + b_in) W_out + b_out, as one step, so
/// that the GELU and its gradient can ride on the products beside them. x: [..., in].
Tensor gelu_mlp(const Tensor& x, const GeluMlpWeights& weights,
                const GeluMlpRecompute& recompute = {}, const GeluMlpGroup& ranks = {});

}  // namespace sluice
