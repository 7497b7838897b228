#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx/cp_async.h"
#include "kernels/cuda/warp.h"

namespace sluice::cuda {

// Tiles of 16-bit rows of a head in shared memory, as the forward and backward attention kernels
// use them. Blocks have four warps. D is the head's width rounded up to a width for which the
// kernels are compiled.

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

/// Rows of one head in global memory: row r begins at start + r * stride (elements).
template <class T>
struct HeadRows {
  const T* start;
  int stride;
  int count;
  int width;
};

/// Position of a chunk in a [rows, D] tile, in elements. Chunks are swizzled, so that eight rows of
/// one chunk column, which ldmatrix reads at once, lie in different banks for every row length.
template <int D>
__device__ __forceinline__ int chunk_offset(int row, int column_chunk) {
  const int swizzled = D % 64 == 0 ? column_chunk ^ (row & 7) : column_chunk ^ ((row >> 1) & 3);
  return row * D + swizzled * chunk;
}

/// Copies tiles of the same rows of `tensors` tensors, one after the other, from global to shared
/// memory with the whole block. Rows must begin at multiples of 16 bytes; what lies beyond the last
/// row and column of the head becomes zero.
template <class T, int rows, int D, Staging staging, int tensors>
class TileCopy {
 public:
  /// The first tiles begin at row `first` of each of `from`.
  __device__ __forceinline__ TileCopy(const HeadRows<T> (&from)[tensors], int first)
      : left_(column() * chunk < from[0].width ? from[0].count - first - row() : 0) {
#pragma unroll
    for (int t = 0; t < tensors; ++t) {
      stride_[t] = from[t].stride * static_cast<int>(sizeof(T));
      next_[t] = reinterpret_cast<const char*>(from[t].start + column() * chunk) +
                 std::int64_t{stride_[t]} * (first + row());
    }
  }

  /// Starts to copy the next tiles.
  __device__ __forceinline__ void start(T (&tiles)[tensors][rows * D]) {
#pragma unroll
    for (int t = 0; t < tensors; ++t) {
#pragma unroll
      for (int i = 0; i < each && takes_part(); ++i) {
        const bool inside = i * rows_at_once < left_;
        const auto* address =
            reinterpret_cast<const T*>(next_[t] + std::int64_t{stride_[t]} * (i * rows_at_once));
        if constexpr (staging == Staging::async) {
          cp_async_16(shared_address(place(tiles[t], i)), address, inside);
        } else {
          held_[t][i] = {};
          if (inside) held_[t][i] = load<chunk>(address);
        }
      }
      next_[t] += std::int64_t{stride_[t]} * rows;
    }
    left_ -= rows;
  }
  /// Registers: the tiles must be free. cp.async: does nothing; the group's wait ends copies.
  __device__ __forceinline__ void finish(T (&tiles)[tensors][rows * D]) {
    if constexpr (staging == Staging::registers) {
#pragma unroll
      for (int t = 0; t < tensors; ++t)
#pragma unroll
        for (int i = 0; i < each && takes_part(); ++i)
          store<chunk>(place(tiles[t], i), held_[t][i]);
    }
  }

 private:
  // A thread copies one column of chunks. Some threads have none if a row's chunks are no power of
  // two. Eight rows or a multiple at once have the same swizzle, so that addresses differ by
  // constants. Of four rows at once every other group has the swizzle of the rows four further on.
  static constexpr int columns = D / chunk;
  static constexpr int rows_at_once = std::bit_floor(unsigned{attention_threads / columns});
  static constexpr int each = rows / rows_at_once;
  static_assert(each * rows_at_once == rows && (rows_at_once % 8 == 0 || rows_at_once == 4));

  static __device__ __forceinline__ bool takes_part() {
    return rows_at_once * columns == attention_threads ||
           static_cast<int>(threadIdx.x) < rows_at_once * columns;
  }
  static __device__ __forceinline__ int row() {
    return static_cast<int>(threadIdx.x) / columns;
  }
  static __device__ __forceinline__ int column() {
    return static_cast<int>(threadIdx.x) % columns;
  }
  static __device__ __forceinline__ T* place(T* tile, int i) {
    const int other = rows_at_once == 4 ? i % 2 * 4 * chunk : 0;
    return tile + (chunk_offset<D>(row(), column()) ^ other) + i * rows_at_once * D;
  }

  const char* next_[tensors];  ///< where this thread's first row of the next tile begins
  int stride_[tensors];        ///< of rows, in bytes
  int left_;                   ///< rows from there to the end of the head
  Pack<T, chunk> held_[tensors][staging == Staging::registers ? each : 1];
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
