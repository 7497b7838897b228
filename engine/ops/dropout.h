#pragma once

#include <cstdint>

#include "engine/tensor.h"
#include "kernels/dropout.h"

namespace sluice {

/// Drops elements by `mask` and scales the rest by 1/(1-p). x: [samples, ...]. An inactive mask
/// returns x itself.
Tensor dropout(const Tensor& x, const DropoutMask& mask);

/// The same of a stretch of the tokens of [samples, ...]: it begins with element `first`, and a
/// sample has `per_sample` of them.
struct DropoutStretch {
  std::int64_t first = 0, per_sample = 0;
};
Tensor dropout(const Tensor& x, const DropoutMask& mask, const DropoutStretch& stretch);

}  // namespace sluice
