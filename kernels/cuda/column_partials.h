#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/device.h"

namespace sluice::cuda {

/// Second step of a sum down the rows of a matrix, without atomics: blocks have left partial sums
/// in the workspace, and this adds them in order: out[j] (+)= sum over s of partial[s, j]. partial:
/// [splits, stride], of which columns [0, columns) are used.
void add_partials(float* out, const float* partial, std::int64_t splits, std::int64_t columns,
                  std::int64_t stride, bool accumulate, Stream stream);

/// Number of parts into which the rows are split: a function of the shape alone, so that the bits
/// do not depend on the GPU.
constexpr std::int64_t row_splits(std::int64_t rows) {
  return std::clamp<std::int64_t>(rows / 64, 1, 256);
}

}  // namespace sluice::cuda
