#pragma once

#include "engine/tensor.h"

namespace sluice {

/// a + b for tensors of equal shape and dtype.
Tensor add(const Tensor& a, const Tensor& b);

/// max(x, 0)
Tensor relu(const Tensor& x);

/// GELU in its tanh form.
Tensor gelu(const Tensor& x);

}  // namespace sluice
