#pragma once

#include "engine/ops/linear/linear.h"
#include "engine/ops/recomputable.h"
#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

/// The activation computes an MLP's hidden row from the row of its first product.
enum class MlpActivation : std::uint8_t {
  gelu,        ///< in its tanh form
  exact_gelu,  ///< by its definition, with erf
  relu,
  swiglu  ///< silu(gate) * up; the first product has both, side by side, so it is twice as wide
};

/// Weights with `in` inputs, `hidden` hidden columns and `out` outputs. The biases may be none.
struct MlpWeights {
  Tensor weight_in, bias_in{};    ///< in to hidden, or to 2 * hidden for swiglu
  Tensor weight_out, bias_out{};  ///< hidden to out
  WeightLayout layout = WeightLayout::in_out;
  MlpActivation activation = MlpActivation::gelu;
};

/// Activations that are recomputed in the backward pass, with the same bits, instead of kept.
struct MlpRecompute {
  bool hidden = false;  ///< the activation's output, several times as wide as x in a transformer
  Recomputable x{};     ///< recomputes x, if given
};

/// Ranks that divide the hidden width. Their parts of the result are summed. Their parts of x's
/// gradient are summed while weight_in's gradients are computed. Only rank 0 adds bias_out.
struct MlpGroup {
  TensorGroup* group = nullptr;
  Shape tokens{};  ///< the argument `tokens` of TensorGroup for x and the result
};

/// MLP of a transformer block, activation(x W_in + b_in) W_out + b_out, as one op, so that the
/// activation and its gradient can be fused with the matrix products next to them. x: [..., in].
Tensor mlp(const Tensor& x, const MlpWeights& weights, const MlpRecompute& recompute = {},
           const MlpGroup& ranks = {});

}  // namespace sluice
