#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/base/half.h"
#include "kernels/cuda/ptx/shared_address.h"
#include "kernels/cuda/target.h"
#ifndef __CUDACC__
#include "kernels/cuda/simt/ptx.h"
#endif

namespace sluice::cuda {

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane l passes the address of
/// row l % 8 of matrix l / 8 (16 bytes, 16-byte aligned). In to[m] it gets elements 2 * (l % 4) and
/// the next one of row l / 4 of matrix m, or with `transposed` of column l / 4.
template <bool transposed>
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&to)[4], SharedAddress row) {
#ifndef __CUDACC__
  simt::ldmatrix_x4(to, row, transposed);
#else
  // volatile and the memory clobber keep it behind the barrier that precedes it.
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
#endif
}

/// d = a b + c for a 16 x 16 matrix a and a 16 x 8 matrix b of type T (bf16 or f16), distributed
/// over the warp as the PTX ISA defines for mma.m16n8k16. With g = lane / 4 and t = lane % 4, a
/// register pair holds two neighbours:
///   a: rows g and g + 8 at columns 2t, then rows g and g + 8 at columns 2t + 8
///   b: rows 2t, 2t + 1 and 2t + 8, 2t + 9 of column g
///   c, d: columns 2t, 2t + 1 of row g, then of row g + 8
/// c may be d. Compute capability 7.5 has the instruction only for f16 and for 8 columns of a; two
/// of those use the same registers.
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4],
                                            const std::uint32_t (&b)[2], const float (&c)[4]) {
#ifndef __CUDACC__
  simt::mma_16x8x16<T>(d, a, b, c);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, Half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
#elif defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, Half>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2]), "r"(a[3]), "r"(b[1]));
  } else {
    __trap();  // the host never launches bf16 on this architecture
  }
#endif
}

}  // namespace sluice::cuda
