#pragma once

#include <cstdint>

#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/ptx/matrix.h"

namespace sluice::cuda {

// Tensor-core products of attention from tiles in shared memory, and the stores of their results to
// global memory. Every lane of the warp must take part in each.

/// Loads rows [first, first + 16), columns [16 k, 16 k + 16) of a tile as left operand of mma.
template <class T, int D>
__device__ __forceinline__ void load_left(std::uint32_t (&a)[4], T* tile, int first, int k) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  ldmatrix_x4<false>(a, chunk_at<T, D>(tile, first + lane % 16, 2 * k + lane / 16));
}

/// sums[m][j] (16 x 8 each) = left rows times the transpose of the tile (products of rows with
/// rows). left(m, k, a) gives the left operand of 16-row group m at columns 16 k.
template <class T, int rows, int D, int groups, class Left>
__device__ __forceinline__ void multiply_rows(float (&sums)[groups][rows / 8][4], T* tile,
                                              Left&& left) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
#pragma unroll
  for (int m = 0; m < groups; ++m)
#pragma unroll
    for (int j = 0; j < rows / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[m][j][i] = 0;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    std::uint32_t a[groups][4];
#pragma unroll
    for (int m = 0; m < groups; ++m)
      left(m, k, a[m]);
#pragma unroll
    for (int j = 0; j < rows / 16; ++j) {
      std::uint32_t b[4];
      ldmatrix_x4<false>(
          b, chunk_at<T, D>(tile, 16 * j + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < groups; ++m) {
        mma_16x8x16<T>(sums[m][2 * j], a[m], {b[0], b[1]});
        mma_16x8x16<T>(sums[m][2 * j + 1], a[m], {b[2], b[3]});
      }
    }
  }
}

/// sums += weights times the tile. The weights are 16 x rows accumulators, rounded to T. A pair of
/// accumulators has the layout of a left operand, so the weights never leave their registers.
template <class T, int rows, int D, int groups>
__device__ __forceinline__ void add_weighted(float (&sums)[groups][D / 8][4],
                                             const float (&weights)[groups][rows / 8][4], T* tile) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
#pragma unroll
  for (int k = 0; k < rows / 16; ++k) {
    std::uint32_t a[groups][4];
#pragma unroll
    for (int m = 0; m < groups; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[m][i] =
            pair<T>(weights[m][2 * k + i / 2][i % 2 * 2], weights[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      std::uint32_t b[4];
      ldmatrix_x4<true>(b, chunk_at<T, D>(tile, 16 * k + lane % 16, 2 * n + lane / 16));
#pragma unroll
      for (int m = 0; m < groups; ++m) {
        mma_16x8x16<T>(sums[m][2 * n], a[m], {b[0], b[1]});
        mma_16x8x16<T>(sums[m][2 * n + 1], a[m], {b[2], b[3]});
      }
    }
  }
}

/// Writes a warp's 16 rows of results to global memory, row i to `to + i * stride`, through the
/// warp's own rows of a tile in shared memory, which turns the accumulator layout into whole
/// chunks. A barrier must precede the call, and nobody may read the tile's old contents after it.
template <class T, int D>
__device__ __forceinline__ void store_rows(T* to, std::int64_t stride, int count, int width,
                                           bool packed, const float (&sums)[D / 8][4], T* tile,
                                           int first) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* at = chunk_at<T, D>(tile, first + lane / 4 + 8 * half, j) + lane % 4 * 2;
      *reinterpret_cast<std::uint32_t*>(at) = pair<T>(sums[j][2 * half], sums[j][2 * half + 1]);
    }
  }
  sync_warp();
  for (int i = lane; i < 16 * (D / chunk); i += warp_size) {
    const int row = i / (D / chunk);
    const int column = i % (D / chunk) * chunk;
    if (row >= count || column >= width) continue;
    const auto values = load<chunk>(chunk_at<T, D>(tile, first + row, column / chunk));
    if (packed) {
      store<chunk>(to + row * stride + column, values);
    } else {
      for (int k = 0; k < chunk && column + k < width; ++k)
        to[row * stride + column + k] = values.values[k];
    }
  }
}

}  // namespace sluice::cuda
