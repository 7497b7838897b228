#pragma once

#include "engine/tensor.h"

namespace sluice {

/// a + b for tensors of equal shape and dtype.
Tensor add(const Tensor& a, const Tensor& b);

}  // namespace sluice
