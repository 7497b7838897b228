#pragma once

#include <cmath>

#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/warp.h"

namespace sluice::cuda {

/// Multiplies rows of accumulators (16 rows a group; a thread has two of them) by a factor each.
template <int groups, int tiles>
__device__ __forceinline__ void scale_rows(float (&rows)[groups][tiles][4],
                                           const float (&factor)[groups][2]) {
#pragma unroll
  for (int m = 0; m < groups; ++m)
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        rows[m][n][i] *= factor[m][i / 2];
}

/// Turns scores of one key tile after the other into probabilities relative to a running maximum
/// (Dao, "FlashAttention-2", 2023, algorithm 1). A thread has two rows of each group; a row is
/// spread over four lanes.
template <int groups, int key_tile>
struct Softmax {
  float top[groups][2];
  float sum[groups][2];

  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int m = 0; m < groups; ++m) {
      top[m][0] = top[m][1] = -INFINITY;
      sum[m][0] = sum[m][1] = 0;
    }
  }

  /// Replaces scores by probabilities. What was summed with earlier ones is to be multiplied by
  /// `shrink`, since the maximum may have risen.
  __device__ __forceinline__ void absorb(float (&scores)[groups][key_tile / 8][4],
                                         float (&shrink)[groups][2], float scale_log2) {
#pragma unroll
    for (int m = 0; m < groups; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float highest = top[m][half];
#pragma unroll
        for (int j = 0; j < key_tile / 8; ++j)
          highest = maximum(highest, maximum(scores[m][j][2 * half], scores[m][j][2 * half + 1]));
        highest = maximum(highest, shuffle_xor(highest, 1));
        highest = maximum(highest, shuffle_xor(highest, 2));
        // One fused multiply-add per exponent: score * scale - highest * scale.
        const float shift = highest * scale_log2;
        shrink[m][half] = exp2_fast(top[m][half] * scale_log2 - shift);
        top[m][half] = highest;
        float total = 0;
#pragma unroll
        for (int j = 0; j < key_tile / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& score = scores[m][j][2 * half + i];
            score = exp2_fast(score * scale_log2 - shift);
            total += score;
          }
        }
        sum[m][half] = sum[m][half] * shrink[m][half] + total;
      }
    }
  }

  /// Divides `out`, rows from `first` on of the head's `length`, by the sums of their
  /// probabilities, and writes the log_sum_exp of the rows.
  template <int tiles>
  __device__ __forceinline__ void finish(float (&out)[groups][tiles][4], float* log_sum_exp,
                                         int first, int length, float scale_log2) const {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    float inverse[groups][2];
#pragma unroll
    for (int m = 0; m < groups; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float total = sum[m][half];
        total += shuffle_xor(total, 1);
        total += shuffle_xor(total, 2);
        inverse[m][half] = 1.0f / total;
        const int row = first + 16 * m + lane / 4 + 8 * half;
        if (lane % 4 == 0 && row < length)
          log_sum_exp[row] = (top[m][half] * scale_log2) * ln_2 + logf(total);
      }
    }
    scale_rows(out, inverse);
  }
};

}  // namespace sluice::cuda
