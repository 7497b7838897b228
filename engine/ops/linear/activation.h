#pragma once

#include "engine/ops/linear/mlp.h"
#include "engine/ops/recomputable.h"
#include "engine/tensor.h"

namespace sluice {

/// The output of an activation, and how a later backward step gets it again from the input, which
/// the activation keeps anyway.
struct Activated {
  Tensor out;
  Recomputable recomputable;
};

/// The activation of an MLP as an op of its own, with the bits that mlp() computes. x: [...,
/// width]; out: the same shape, or for swiglu half as wide.
Activated activation(const Tensor& x, MlpActivation kind);

// The parts of an MLP's activation, for the ops that contain it.

Tensor empty_activated(const Tensor& x, MlpActivation kind);
void activate(const Tensor& out, const Tensor& x, MlpActivation kind);
/// Computes the gradient of x; grad_x may be grad_out, except for swiglu.
void activation_gradient(const Tensor& grad_x, const Tensor& grad_out, const Tensor& x,
                         MlpActivation kind);

}  // namespace sluice
