#pragma once

#include <cstdint>

#include "kernels/cuda/target.h"

namespace sluice::cuda {

/// An address in shared memory as the instructions in this folder take it. On a GPU it has 32 bits,
/// which halves the arithmetic on addresses in inner loops.
#ifdef __CUDACC__
using SharedAddress = std::uint32_t;
#else
using SharedAddress = std::uintptr_t;
#endif

__device__ __forceinline__ SharedAddress shared_address(const void* address) {
#ifdef __CUDACC__
  return static_cast<SharedAddress>(__cvta_generic_to_shared(address));
#else
  return reinterpret_cast<SharedAddress>(address);
#endif
}

}  // namespace sluice::cuda
