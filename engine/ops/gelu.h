#pragma once

#include "engine/tensor.h"

namespace sluice {

/// Elementwise GELU in its tanh form.
Tensor gelu(const Tensor& x);

}  // namespace sluice
