#pragma once

#include "engine/tensor.h"

namespace sluice {

/// max(x, 0), element by element.
Tensor relu(const Tensor& x);

}  // namespace sluice
