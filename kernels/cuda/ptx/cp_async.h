#pragma once

#include "kernels/cuda/ptx/shared_address.h"
#include "kernels/cuda/target.h"
#ifndef __CUDACC__
#include "kernels/cuda/simt/ptx.h"
#endif

namespace sluice::cuda {

// Copies from global to shared memory that overlap with computation (compute capability 8.0 and
// later). They are collected in groups. A thread may read the data of a group after it has waited
// for the group; other threads may read it after a barrier that follows that wait.

/// Copies 16 bytes; both addresses are 16-byte aligned. Writes zeros, and reads nothing, if `valid`
/// is false.
__device__ __forceinline__ void cp_async_16(SharedAddress to, const void* from, bool valid) {
#ifndef __CUDACC__
  simt::cp_async_16(to, from, valid);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
#endif
}

/// Ends the group of all copies since the last call.
__device__ __forceinline__ void cp_async_commit() {
#ifndef __CUDACC__
  simt::cp_async_commit();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits until at most the `pending` latest groups are still in flight.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
#ifndef __CUDACC__
  simt::cp_async_wait(pending);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

}  // namespace sluice::cuda
