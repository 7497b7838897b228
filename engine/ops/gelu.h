#pragma once

#include "engine/tensor.h"

namespace sluice {

/// The tanh form of GELU, element by element.
Tensor gelu(const Tensor& x);

}  // namespace sluice
