#pragma once

#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::cuda {

/// One thread starts the copy of a box of a tensor to shared memory, whose bytes count for the
/// barrier's current phase when they have arrived (compute capability 9.0). What lies outside of
/// the tensor becomes zero. The box begins at element (column, head, row, sample); rows of 128
/// bytes follow each other at `to`, a multiple of 1024 bytes, with their 16-byte chunks swizzled:
/// chunk c of row r takes the place c ^ (r % 8).
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, int column, int head,
                                         int row, int sample, Mbarrier& barrier) {
#ifndef __CUDACC__
  simt::tma_load(shared_address(to), map, {column, head, row, sample}, shared_address(&barrier));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(column), "r"(head), "r"(row), "r"(sample),
      "r"(shared_address(&barrier))
      : "memory");
#endif
}

}  // namespace sluice::cuda
