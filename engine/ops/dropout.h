#pragma once

#include <cstdint>

#include "engine/tensor.h"
#include "kernels/dropout.h"

namespace sluice {

/// Drops elements by `mask` and scales the rest by 1/(1-p). x: [samples, ...]. Returns x itself if
/// the mask is inactive.
Tensor dropout(const Tensor& x, const DropoutMask& mask);

/// Same for a contiguous part of the elements of [samples, ...]: the part begins with element
/// `first`, and a sample has `per_sample` elements.
struct DropoutStretch {
  std::int64_t first = 0, per_sample = 0;
};
Tensor dropout(const Tensor& x, const DropoutMask& mask, const DropoutStretch& stretch);

}  // namespace sluice
