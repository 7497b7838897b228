#pragma once

#include "engine/tensor.h"

namespace sluice {

/// a + b, of one shape and dtype.
Tensor add(const Tensor& a, const Tensor& b);

}  // namespace sluice
