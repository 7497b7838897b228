#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/target.h"
#ifndef __CUDACC__
#include "kernels/cuda/simt/block.h"
#endif

namespace sluice::cuda {

constexpr int warp_size = 32;

// Every lane of the warp must take part in each of these functions.

__device__ __forceinline__ void sync_warp() {
#ifdef __CUDACC__
  __syncwarp();
#else
  simt::BlockRunner::here().meet<char, char>(simt::Meeting::warp, 0, [](const char*, char*) {});
#endif
}

/// Returns the value of the lane whose number differs in the bits of `mask`.
template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int mask) {
#ifdef __CUDACC__
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
#else
  return simt::BlockRunner::here().meet<T, T>(simt::Meeting::shuffle, value,
                                              [mask](const T* in, T* out) {
                                                for (int lane = 0; lane < warp_size; ++lane)
                                                  out[lane] = in[lane ^ mask];
                                              });
#endif
}

/// Returns the value of lane `from`.
template <class T>
__device__ __forceinline__ T shuffle(T value, int from) {
#ifdef __CUDACC__
  return __shfl_sync(0xFFFFFFFFu, value, from);
#else
  struct In {
    T value;
    int from;
  };
  return simt::BlockRunner::here().meet<In, T>(simt::Meeting::shuffle, {value, from},
                                               [](const In* in, T* out) {
                                                 for (int lane = 0; lane < warp_size; ++lane)
                                                   out[lane] = in[in[lane].from % warp_size].value;
                                               });
#endif
}

/// Combines the values of all lanes, in pairs of lanes (a butterfly): all lanes get the same bits,
/// whatever the order in which they run.
template <class T, class Combine>
__device__ __forceinline__ T warp_fold(T value, Combine combine) {
#pragma unroll
  for (int mask = warp_size / 2; mask > 0; mask /= 2)
    value = combine(value, shuffle_xor(value, mask));
  return value;
}

/// The same over a block of `warps` warps, in warp order. `scratch` holds one T per warp and may be
/// reused after the next barrier. Every thread gets the result.
template <int warps, class T, class Combine>
__device__ __forceinline__ T block_fold(T value, T* scratch, Combine combine) {
  value = warp_fold(value, combine);
  if (threadIdx.x % warp_size == 0) scratch[threadIdx.x / warp_size] = value;
  __syncthreads();
  T all = scratch[0];
#pragma unroll
  for (int warp = 1; warp < warps; ++warp)
    all = combine(all, scratch[warp]);
  return all;
}

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  return warp_fold(value, [](T a, T b) { return a + b; });
}

template <int warps, class T>
__device__ __forceinline__ T block_sum(T value, T* scratch) {
  return block_fold<warps>(value, scratch, [](T a, T b) { return a + b; });
}
template <int warps>
__device__ __forceinline__ float block_max(float value, float* scratch) {
  return block_fold<warps>(value, scratch, [](float a, float b) { return maximum(a, b); });
}

}  // namespace sluice::cuda
