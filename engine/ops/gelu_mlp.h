#pragma once

#include "engine/ops/recall.h"
#include "engine/tensor.h"

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

/// The feed-forward part of a transformer block, gelu(x W_in + b_in) W_out + b_out, as one step, so
/// that the GELU and its gradient can ride on the products beside them. x: [..., in].
Tensor gelu_mlp(const Tensor& x, const GeluMlpWeights& weights,
                const GeluMlpRecompute& recompute = {});

}  // namespace sluice
