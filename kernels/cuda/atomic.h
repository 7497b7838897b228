#pragma once

#include <cstdint>

#include "kernels/cuda/target.h"
#ifndef __CUDACC__
#include <atomic>
#endif

namespace sluice::cuda {

/// Adds to an integer in global memory and returns the previous value. There is no version for
/// floats, because their sums would depend on the order.
__device__ __forceinline__ std::int32_t add_atomic(std::int32_t* to, std::int32_t value) {
#ifdef __CUDACC__
  return atomicAdd(to, value);
#else
  return std::atomic_ref(*to).fetch_add(value, std::memory_order_relaxed);
#endif
}

}  // namespace sluice::cuda
