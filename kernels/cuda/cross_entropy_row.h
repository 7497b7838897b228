#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

// Softmax cross-entropy of one row of logits by one block: the whole vocabulary or a part of it.
// Each thread takes N logits at a time.

namespace sluice::cuda {

constexpr int row_warps = 16;
constexpr int row_threads = row_warps * warp_size;

struct RowShared {
  float maxima[row_warps];
  float sums[row_warps];
};

/// Running maximum and the sum of exp(x - maximum) so far (Milakov & Gimelshein, "Online normalizer
/// calculation for softmax", 2018).
struct Online {
  float top = -INFINITY;
  float sum = 0;

  __device__ void add(float x) {
    if (x == -INFINITY) return;  // impossible token; -inf - -inf would be NaN
    const float higher = maximum(top, x);
    if (higher != top) sum *= exp2_fast((top - higher) * log2_e);
    top = higher;
    sum += exp2_fast((x - top) * log2_e);
  }
};

/// Maximum and sum of a whole row; -infinity and 0 for no columns.
template <int N>
__device__ __forceinline__ Online normalizer(const float* x, std::int64_t columns,
                                             RowShared& shared) {
  const std::int64_t packed = columns / N * N;
  Online mine;
  for (std::int64_t j = static_cast<std::int64_t>(threadIdx.x) * N; j < packed;
       j += row_threads * N) {
    float values[N];
    load_floats(values, x + j);
#pragma unroll
    for (int i = 0; i < N; ++i)
      mine.add(values[i]);
  }
  if (packed + threadIdx.x < columns) mine.add(x[packed + threadIdx.x]);
  Online row;
  row.top = block_max<row_warps>(mine.top, shared.maxima);
  const float base = row.top == -INFINITY ? 0.0f : row.top;  // 0 if all are impossible, as above
  const float shrink = exp2_fast((mine.top - base) * log2_e);
  row.sum = block_sum<row_warps>(mine.sum * shrink, shared.sums);
  return row;
}

/// Writes scale * (softmax - one-hot), using the normalizer of the whole vocabulary, then `padding`
/// zeros. `target` may be outside of these columns.
template <int N, class T>
__device__ __forceinline__ void write_gradient(T* out, const float* x, std::int64_t columns,
                                               std::int64_t target, const Online& whole,
                                               std::int64_t padding, float scale) {
  const float factor = scale / whole.sum;
  const auto slope = [&](float value, std::int64_t j) {
    const float p = exp2_fast((value - whole.top) * log2_e);
    // Uses the unrounded probability, because in 16 bits 1 - p would lose a small p.
    return j == target ? scale * (p / whole.sum - 1.0f) : p * factor;
  };
  // The gradient may overlay the logits, in fewer bytes. A round of the block only overwrites
  // logits that were read in this round or before; the barrier keeps that order.
  const std::int64_t end = columns + padding;
  for (std::int64_t base = 0; base < end; base += row_threads * N) {
    const std::int64_t j = base + static_cast<std::int64_t>(threadIdx.x) * N;
    float values[N];
    if (j + N <= columns) {
      load_floats(values, x + j);
#pragma unroll
      for (int i = 0; i < N; ++i)
        values[i] = slope(values[i], j + i);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i)
        values[i] = j + i < columns ? slope(x[j + i], j + i) : 0.0f;
    }
    __syncthreads();
    if (j + N <= end) {
      store_floats(out + j, values);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (j + i < end) out[j + i] = from_float<T>(values[i]);
    }
  }
}

}  // namespace sluice::cuda
