#pragma once

#include <cstdint>

#include "kernels/cuda/target.h"
#ifndef __CUDACC__
#include "kernels/cuda/simt/matrix.h"
#endif

namespace sluice::cuda {

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane l passes the address of
/// row l % 8 of matrix l / 8 (16 bytes, 16-byte aligned). In to[m] it gets elements 2 * (l % 4) and
/// the next one of row l / 4 of matrix m, or with `transposed` of column l / 4.
template <bool transposed>
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&to)[4], const void* row) {
#ifndef __CUDACC__
  simt::ldmatrix_x4(to, row, transposed);
#else
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  // volatile and the memory clobber keep it behind the barrier that precedes it.
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
#endif
}

}  // namespace sluice::cuda
