#pragma once

// The API that kernels use: CUDA itself, or the parts of it that they need for a host compiler
// (SLUICE_CUDA=simt). Everything else goes through the wrappers of kernels/cuda/ptx and
// kernels/cuda/warp.h, so that the list below stays short.

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include <atomic>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace sluice::simt {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

/// Special registers of the running thread.
extern constinit thread_local Index thread_index;
extern constinit thread_local Index block_index;
extern constinit thread_local dim3 block_size;
extern constinit thread_local dim3 grid_size;

/// Waits for all threads of the block.
void sync_threads();

}  // namespace sluice::simt

#define threadIdx (::sluice::simt::thread_index)
#define blockIdx (::sluice::simt::block_index)
#define blockDim (::sluice::simt::block_size)
#define gridDim (::sluice::simt::grid_size)

inline void __syncthreads() {
  ::sluice::simt::sync_threads();
}

/// The atomics below order other accesses too.
inline void __threadfence() {}

/// Not for floats, whose sums would depend on the order.
inline int atomicAdd(int* to, int value) {
  return std::atomic_ref(*to).fetch_add(value, std::memory_order_acq_rel);
}
#endif
