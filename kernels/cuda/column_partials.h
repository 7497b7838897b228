#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/device.h"

namespace sluice::cuda {

/// A sum of columns, and whether it is added to what is there.
struct ColumnTotals {
  float* out;
  bool accumulate;
};

/// Second step of sums down the rows of a matrix, without atomics: blocks have left partial sums in
/// the workspace, and this adds them in a fixed order. totals[k].out[j] (+)= sum over s of
/// partial[s, k, j]. partial: [splits, k, columns]. The second of `totals` may be missing.
void add_partials(const ColumnTotals (&totals)[2], const float* partial, std::int64_t splits,
                  std::int64_t columns, Stream stream);

/// Number of parts into which the rows are split: a function of the shape alone, so that the bits
/// do not depend on the GPU.
constexpr std::int64_t row_splits(std::int64_t rows) {
  return std::clamp<std::int64_t>(rows / 64, 1, 256);
}

}  // namespace sluice::cuda
