#pragma once

#include <cstdint>

#include "kernels/cuda/target.h"
#ifndef __CUDACC__
#include "kernels/cuda/simt/wgmma.h"
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SLUICE_HAS_WGMMA
#endif

namespace sluice::cuda {

// A warpgroup is four warps, the first one's index a multiple of four (compute capability 9.0
// alone). Its matrix products run beside the threads and are collected in groups. Accumulators and
// shared memory that a group uses may be touched after a wait for it.

/// Keeps the products that follow behind what was done to their accumulators.
template <int tiles>
__device__ __forceinline__ void wgmma_fence(float (&sums)[tiles][4]) {
#ifdef SLUICE_HAS_WGMMA
  // The compiler must not move the last change of a register behind the fence.
#pragma unroll
  for (int j = 0; j < tiles; ++j)
    asm volatile("" : "+f"(sums[j][0]), "+f"(sums[j][1]), "+f"(sums[j][2]), "+f"(sums[j][3]));
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  static_cast<void>(sums);
#endif
}
/// The same, also for their left operands in registers.
template <int tiles, int operands>
__device__ __forceinline__ void wgmma_fence(float (&sums)[tiles][4],
                                            std::uint32_t (&left)[operands][4]) {
#ifdef SLUICE_HAS_WGMMA
#pragma unroll
  for (int k = 0; k < operands; ++k)
    asm volatile("" : "+r"(left[k][0]), "+r"(left[k][1]), "+r"(left[k][2]), "+r"(left[k][3]));
#else
  static_cast<void>(left);
#endif
  wgmma_fence(sums);
}
/// Ends the group of all products since the last call.
__device__ __forceinline__ void wgmma_commit() {
#ifndef __CUDACC__
  simt::wgmma_commit();
#elif defined(SLUICE_HAS_WGMMA)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/// Waits until at most the `pending` latest groups are still in flight. `sums` are accumulators of
/// those that have ended: reading them cannot move before the wait.
template <int pending, int tiles>
__device__ __forceinline__ void wgmma_wait(float (&sums)[tiles][4]) {
#ifndef __CUDACC__
  simt::wgmma_wait(pending);
  static_cast<void>(sums);
#elif defined(SLUICE_HAS_WGMMA)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#pragma unroll
  for (int j = 0; j < tiles; ++j)
    asm volatile("" : "+f"(sums[j][0]), "+f"(sums[j][1]), "+f"(sums[j][2]), "+f"(sums[j][3]));
#endif
}

/// Changes how many registers each thread of the warpgroup has; a multiple of 8. A block starts
/// with as many for each thread as it was compiled for.
template <int count>
__device__ __forceinline__ void fewer_registers() {
#ifdef SLUICE_HAS_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}
template <int count>
__device__ __forceinline__ void more_registers() {
#ifdef SLUICE_HAS_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

}  // namespace sluice::cuda
