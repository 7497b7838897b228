#pragma once

#include <cstddef>
#include <span>

#include "parallel/comm/backend/backend.h"

namespace sluice {

/// out[i] = contributions[0][i] + contributions[1][i] + ... in that order (or the largest of them);
/// bf16 and f16 are added in f32 and rounded once. `out` may be one of the contributions. All
/// arrays have the same dtype and size: f64, f32, bf16, f16 or i32.
void ordered_reduce(const View& out, std::span<const std::byte* const> contributions, ReduceOp op);

}  // namespace sluice
