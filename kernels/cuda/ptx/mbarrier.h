#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/shared_address.h"
#include "kernels/cuda/target.h"
#ifndef __CUDACC__
#include "kernels/cuda/simt/mbarrier.h"
#endif

namespace sluice::cuda {

// Barriers in shared memory, of which a block may have many (compute capability 9.0). A phase of a
// barrier ends when all its arrivals have come, and all bytes of copies that it was told to expect.
// The phases have parity 0, 1, 0, 1 and so on.

using Mbarrier = std::uint64_t;

/// Prepares a barrier on which `arrivals` threads arrive in each phase. One thread does this; the
/// others may use the barrier after it has called mbarrier_publish and then all a block barrier.
__device__ __forceinline__ void mbarrier_init(Mbarrier& barrier, unsigned arrivals) {
#ifndef __CUDACC__
  simt::mbarrier_init(shared_address(&barrier), arrivals);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(arrivals)
               : "memory");
#endif
}

/// Makes initialized barriers visible to the unit that copies.
__device__ __forceinline__ void mbarrier_publish() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void mbarrier_arrive(Mbarrier& barrier) {
#ifndef __CUDACC__
  simt::mbarrier_arrive(shared_address(&barrier), 0);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
               : "memory");
#endif
}

/// Arrives, and makes the phase wait for `bytes` of copies.
__device__ __forceinline__ void mbarrier_arrive_expecting(Mbarrier& barrier, unsigned bytes) {
#ifndef __CUDACC__
  simt::mbarrier_arrive(shared_address(&barrier), bytes);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
#endif
}

/// Waits until the phase of this parity has ended. A new barrier behaves as if a phase of parity 1
/// had just ended.
__device__ __forceinline__ void mbarrier_wait(Mbarrier& barrier, unsigned parity) {
#ifndef __CUDACC__
  simt::mbarrier_wait(shared_address(&barrier), parity);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace sluice::cuda
