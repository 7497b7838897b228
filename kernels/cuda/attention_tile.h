#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx/cp_async.h"
#include "kernels/cuda/warp.h"

namespace sluice::cuda {

// Tiles of 16-bit rows of a head in shared memory, as the forward and backward attention kernels
// use them. Blocks are four warps of 16 rows each (or twice 16). D is the head's width rounded up
// to a width for which the kernels are compiled.

constexpr int attention_warps = 4;
constexpr int attention_threads = attention_warps * warp_size;
/// Number of elements in 16 bytes, the unit in which tiles are moved.
constexpr int chunk = 8;

/// Staging of tiles from global memory: by cp.async (compute capability 8.0 and later), or through
/// registers that are loaded before the computation on a tile and stored after it.
enum class Staging { async, registers };

/// True if kernels with this staging are compiled for the current architecture. Each architecture
/// has one of the two; the host has both.
template <Staging staging>
#if !defined(__CUDA_ARCH__)
constexpr bool compiled = true;
#elif __CUDA_ARCH__ >= 800
constexpr bool compiled = staging == Staging::async;
#else
constexpr bool compiled = staging == Staging::registers;
#endif

/// Rows of one head in global memory.
template <class T>
struct HeadRows {
  const T* start;
  std::int64_t stride;
  std::int64_t count;
  int width;
  bool packed;  ///< every 8 elements are 16-byte aligned, and the width is a multiple of 8
};

/// Address of a chunk in a [rows, D] tile. Chunks are swizzled, so that eight rows of one chunk
/// column, which ldmatrix reads at once, lie in different banks for every row length.
template <class T, int D>
__device__ __forceinline__ T* chunk_at(T* tile, int row, int column_chunk) {
  const int swizzled = D % 64 == 0 ? column_chunk ^ (row & 7) : column_chunk ^ ((row >> 1) & 3);
  return tile + row * D + swizzled * chunk;
}

/// Reads 8 elements of a head; elements outside of it are zero.
template <class T>
__device__ __forceinline__ Pack<T, chunk> read_chunk(const HeadRows<T>& rows, std::int64_t row,
                                                     int column) {
  Pack<T, chunk> result;
#pragma unroll
  for (int i = 0; i < chunk; ++i)
    result.values[i] = from_float<T>(0.0f);
  if (row >= rows.count || column >= rows.width) return result;
  const T* from = rows.start + row * rows.stride + column;
  if (rows.packed) return load<chunk>(from);
#pragma unroll
  for (int i = 0; i < chunk; ++i)
    if (column + i < rows.width) result.values[i] = from[i];
  return result;
}

/// Copies one tile from global to shared memory with the whole block.
template <class T, int rows, int D, Staging staging>
struct TileCopy {
  static constexpr int each = rows * (D / chunk) / attention_threads;
  static_assert(each * attention_threads == rows * (D / chunk));
  Pack<T, chunk> held[staging == Staging::registers ? each : 1];

  __device__ __forceinline__ void start(T* tile, const HeadRows<T>& from, std::int64_t first) {
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int at = i * attention_threads + static_cast<int>(threadIdx.x);
      const int row = at / (D / chunk);
      const int column = at % (D / chunk);
      if constexpr (staging == Staging::registers) {
        held[i] = read_chunk(from, first + row, column * chunk);
      } else if (from.packed) {
        const bool valid = first + row < from.count && column * chunk < from.width;
        cp_async_16(chunk_at<T, D>(tile, row, column),
                    valid ? from.start + (first + row) * from.stride + column * chunk : from.start,
                    valid);
      } else {
        store<chunk>(chunk_at<T, D>(tile, row, column),
                     read_chunk(from, first + row, column * chunk));
      }
    }
  }
  /// Registers: the tile must be free by now. cp.async: does nothing; the group's wait ends copies.
  __device__ __forceinline__ void finish(T* tile) {
    if constexpr (staging == Staging::registers) {
#pragma unroll
      for (int i = 0; i < each; ++i) {
        const int at = i * attention_threads + static_cast<int>(threadIdx.x);
        store<chunk>(chunk_at<T, D>(tile, at / (D / chunk), at % (D / chunk)), held[i]);
      }
    }
  }
};

/// Waits until the block may read the current stage. `more`: copies to the next one are under way.
template <Staging staging>
__device__ __forceinline__ void await_stage(bool more) {
  if constexpr (staging == Staging::async) {
    if (more)
      cp_async_wait<1>();
    else
      cp_async_wait<0>();
  }
  __syncthreads();
}

}  // namespace sluice::cuda
