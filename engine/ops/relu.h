#pragma once

#include "engine/tensor.h"

namespace sluice {

/// Elementwise max(x, 0).
Tensor relu(const Tensor& x);

}  // namespace sluice
