#pragma once

#include <cstdint>

#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/ptx/matrix.h"

namespace sluice::cuda {

// Tensor-core products of attention from tiles in shared memory, and the stores of their results to
// global memory. Every lane of the warp must take part in each.

/// Addresses in a [rows, D] tile from which one lane loads its share of 16 x 16 blocks. The lane's
/// address for block (0, 0) gives all others with one XOR by a constant: the swizzle changes only
/// the lowest bits of a chunk's column, and not from one group of 16 rows to the next.
template <class T, int D>
struct BlockAddresses {
  SharedAddress first;
  int distance = 0;  ///< bytes from `first`'s tile to the tile that is meant

  /// Block of rows [16 row, 16 row + 16) and columns [16 column, 16 column + 16).
  __device__ __forceinline__ SharedAddress at(int row, int column) const {
    constexpr int block_bytes = 16 * static_cast<int>(sizeof(T));
    constexpr int swizzled = D % 64 == 0 ? 4 : 2;  // blocks whose columns the swizzle may exchange
    const int within = column % swizzled * block_bytes;
    const int beyond = column / swizzled * swizzled * block_bytes + row * D * block_bytes;
    return (first ^ static_cast<SharedAddress>(within)) +
           static_cast<SharedAddress>(beyond + distance);
  }
  /// The same blocks of the tile that lies `bytes` behind.
  __device__ __forceinline__ BlockAddresses behind(int bytes) const {
    return {first, distance + bytes};
  }
};

/// Lane l has row l % 16, chunk l / 16. ldmatrix then gives a left operand of mma, or transposed
/// the right operand of a product with the tile.
template <class T, int D>
__device__ __forceinline__ BlockAddresses<T, D> straight_blocks(const T* tile) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  return {shared_address(tile + chunk_offset<D>(lane % 16, lane / 16))};
}

/// Lane l has row l / 16 * 8 + l % 8, chunk l / 8 % 2. ldmatrix then gives the right operand of a
/// product with the transpose of the tile.
template <class T, int D>
__device__ __forceinline__ BlockAddresses<T, D> transposed_blocks(const T* tile) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  return {shared_address(tile + chunk_offset<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2))};
}

/// A lane's registers of a left operand of mma, and of accumulators.
struct LeftOperand {
  std::uint32_t words[4];
};
struct alignas(16) Accumulators {
  float values[4];
};

template <class T, int D>
__device__ __forceinline__ LeftOperand load_left(BlockAddresses<T, D> tile, int row, int column) {
  LeftOperand result;
  ldmatrix_x4<false>(result.words, tile.at(row, column));
  return result;
}

/// sums[m][j] (16 x 8 each) = Accumulators initial(m, j) + left rows times the transpose of the
/// tile. left(m, k) gives the LeftOperand of 16-row group m at columns 16 k.
template <class T, int rows, int D, int groups, class Left, class Initial>
__device__ __forceinline__ void multiply_rows(float (&sums)[groups][rows / 8][4],
                                              BlockAddresses<T, D> tile, Left&& left,
                                              Initial&& initial) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    LeftOperand a[groups];
#pragma unroll
    for (int m = 0; m < groups; ++m)
      a[m] = left(m, k);
#pragma unroll
    for (int j = 0; j < rows / 8; j += 2) {
      std::uint32_t b[4];
      ldmatrix_x4<false>(b, tile.at(j / 2, k));
#pragma unroll
      for (int m = 0; m < groups; ++m) {
        if (k == 0) {
          mma_16x8x16<T>(sums[m][j], a[m].words, {b[0], b[1]}, initial(m, j).values);
          mma_16x8x16<T>(sums[m][j + 1], a[m].words, {b[2], b[3]}, initial(m, j + 1).values);
        } else {
          mma_16x8x16<T>(sums[m][j], a[m].words, {b[0], b[1]}, sums[m][j]);
          mma_16x8x16<T>(sums[m][j + 1], a[m].words, {b[2], b[3]}, sums[m][j + 1]);
        }
      }
    }
  }
}

/// sums += weights times the tile. The weights are 16 x rows accumulators, rounded to T. A pair of
/// accumulators has the layout of a left operand, so the weights never leave their registers.
template <class T, int rows, int D, int groups>
__device__ __forceinline__ void add_weighted(float (&sums)[groups][D / 8][4],
                                             const float (&weights)[groups][rows / 8][4],
                                             BlockAddresses<T, D> tile) {
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
      ldmatrix_x4<true>(b, tile.at(k, n));
#pragma unroll
      for (int m = 0; m < groups; ++m) {
        mma_16x8x16<T>(sums[m][2 * n], a[m], {b[0], b[1]}, sums[m][2 * n]);
        mma_16x8x16<T>(sums[m][2 * n + 1], a[m], {b[2], b[3]}, sums[m][2 * n + 1]);
      }
    }
  }
}

/// Writes a warp's 16 rows of results to global memory, row i to `to + i * stride`, through the
/// warp's own rows of a tile in shared memory, which turns the accumulator layout into whole
/// chunks. A barrier must precede the call, and nobody may read the tile's old contents after it.
template <class T, int D>
__device__ __forceinline__ void store_rows(T* to, int stride, int count, int width,
                                           const float (&sums)[D / 8][4], T* tile, int first) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* at = tile + chunk_offset<D>(first + lane / 4 + 8 * half, j) + lane % 4 * 2;
      *reinterpret_cast<std::uint32_t*>(at) = pair<T>(sums[j][2 * half], sums[j][2 * half + 1]);
    }
  sync_warp();
#pragma unroll
  for (int i = 0; i < 16 * (D / chunk) / warp_size; ++i) {
    const int at = i * warp_size + lane;
    const int row = at / (D / chunk), column = at % (D / chunk) * chunk;
    if (row < count && column < width)
      store<chunk>(to + static_cast<std::int64_t>(row) * stride + column,
                   load<chunk>(tile + chunk_offset<D>(first + row, column / chunk)));
  }
}

}  // namespace sluice::cuda
