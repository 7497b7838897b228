#pragma once

#include "engine/tensor.h"
#include "kernels/dropout.h"

namespace sluice {

/// Drops elements by `mask` and scales the rest by 1/(1-p). x: [samples, ...]. An inactive mask
/// returns x itself.
Tensor dropout(const Tensor& x, const DropoutMask& mask);

}  // namespace sluice
