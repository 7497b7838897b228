#pragma once

#include <cstdint>
#include <vector>

#include "engine/ops/recomputable.h"
#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

/// Columns of a layer's result that one pair of low-rank matrices changes.
struct LowRankPart {
  std::int64_t first;  ///< column of the result
  std::int64_t columns;
};

/// Low-rank changes of a linear layer (Hu et al., "LoRA: Low-rank adaptation of large language
/// models", 2022). With n parts of rank r:
///   a: [n * r, in], the matrices A of all parts, one below the other
///   b: [columns of all parts, r], the matrices B, likewise
struct LowRankWeights {
  Tensor a, b;
  std::vector<LowRankPart> parts;
  double scale = 1;
  /// Ranks that divide the layer's columns: each has some of the result's columns and of b's rows.
  /// Their parts of the gradient of x a^T are summed.
  TensorGroup* columns = nullptr;
  /// Ranks that divide the layer's rows: each has some columns of x and of a. Their parts of x a^T
  /// are summed.
  TensorGroup* rows = nullptr;
};

/// Adds scale * x A^T B^T to the columns of each part. Writes to the memory of `y`, which must not
/// be used afterwards. x: [..., in], what the layer computed y from, or the same after dropout; y:
/// [..., out], of the same dtype. `recomputable` recomputes x, and is kept for backward instead.
Tensor add_low_rank(const Tensor& y, const Tensor& x, const LowRankWeights& weights,
                    const Recomputable& recomputable = {});

}  // namespace sluice
