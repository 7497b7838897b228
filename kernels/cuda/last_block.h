#pragma once

#include "kernels/cuda/queue.h"
#include "kernels/cuda/target.h"

namespace sluice::cuda {

/// Returns true to every thread of the block that is the last of `blocks` to call this with the
/// same counter, as in the CUDA sample threadFenceReduction. That block sees all that the others
/// wrote before their calls, so it can combine what they have computed. It resets the counter. The
/// order in which blocks end is not fixed. `last` is in the block's shared memory. The call is a
/// barrier of the block.
__device__ __forceinline__ bool is_last_block(int* arrivals, unsigned blocks, int& last) {
  if (blocks == 1) {
    __syncthreads();
    return true;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = atomicAdd(arrivals, 1) + 1 == static_cast<int>(blocks) ? 1 : 0;
    if (last == 1) *arrivals = 0;
  }
  __syncthreads();
  __threadfence();
  return last == 1;
}

}  // namespace sluice::cuda
