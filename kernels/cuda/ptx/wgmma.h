#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/base/half.h"
#include "kernels/cuda/ptx/shared_address.h"
#include "kernels/cuda/ptx/warpgroup.h"

namespace sluice::cuda {

// Matrix products of a warpgroup (warpgroup.h has the waits for them). Operands of T (bf16 or f16)
// in shared memory have rows of 128 bytes, swizzled as tma_load leaves them. The layouts are those
// of the PTX ISA, "Asynchronous warpgroup level matrix instructions".

/// A matrix descriptor (PTX ISA) gives the address and the layout of an operand in shared memory.
/// Addresses and distances are in units of 16 bytes.
using MatrixDescriptor = std::uint64_t;

/// `to_next_rows`: bytes from eight rows to the next eight. `to_next_columns`: bytes from 64
/// columns to the next 64, of an operand that is read along its columns.
__device__ __forceinline__ MatrixDescriptor matrix_descriptor(const void* operand,
                                                              unsigned to_next_rows,
                                                              unsigned to_next_columns) {
#ifndef __CUDACC__
  const auto address = simt::shared_offset(operand);
#else
  const auto address = static_cast<std::uint64_t>(shared_address(operand));
#endif
  constexpr std::uint64_t swizzle_of_128_bytes = 1;
  return (address & 0x3FFFF) >> 4 | std::uint64_t{to_next_columns >> 4} << 16 |
         std::uint64_t{to_next_rows >> 4} << 32 | swizzle_of_128_bytes << 62;
}
/// The same operand `bytes` further on.
__device__ __forceinline__ MatrixDescriptor advance(MatrixDescriptor operand, unsigned bytes) {
  return operand + (bytes >> 4);
}

#ifdef SLUICE_HAS_WGMMA
#define SLUICE_SUMS_4(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define SLUICE_SUMS_16(j) \
  SLUICE_SUMS_4(j), SLUICE_SUMS_4(j + 1), SLUICE_SUMS_4(j + 2), SLUICE_SUMS_4(j + 3)
#define SLUICE_SUMS_32(j) SLUICE_SUMS_16(j), SLUICE_SUMS_16(j + 4)
#define SLUICE_NAMES_32                                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SLUICE_NAMES_64                                                                     \
  SLUICE_NAMES_32                                                                           \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#endif

/// d = a times the transpose of b, or d += that with `add`: [64, 16] times [128, 16], both in
/// shared memory with 16 neighbours of a row each. Lane l of warp w of the warpgroup has columns
/// 8 j + l % 4 * 2 and the next one in d[j], of row 16 w + l / 4 and then of that plus 8.
template <class T>
__device__ __forceinline__ void wgmma_rows(float (&d)[16][4], MatrixDescriptor a,
                                           MatrixDescriptor b, bool add) {
#ifndef __CUDACC__
  simt::wgmma<T>(&d[0][0], 16, nullptr, a, b, add);
#elif defined(SLUICE_HAS_WGMMA)
#define SLUICE_WGMMA_ROWS(types)                                                \
  asm volatile(                                                                 \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                          \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." types " {" SLUICE_NAMES_64 \
      "}, %64, %65, add, 1, 1, 0, 0;\n}\n"                                      \
      : SLUICE_SUMS_32(0), SLUICE_SUMS_32(8)                                    \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))
  if constexpr (std::is_same_v<T, Half>)
    SLUICE_WGMMA_ROWS("f16.f16");
  else
    SLUICE_WGMMA_ROWS("bf16.bf16");
#undef SLUICE_WGMMA_ROWS
#endif
}

/// d += a b: [64, 16] in registers times [16, 8 tiles] in shared memory, 16 of its rows. a has the
/// layout of the left operand of mma_16x8x16 in each warp, d that of wgmma_rows.
template <class T, int tiles>
__device__ __forceinline__ void wgmma_add(float (&d)[tiles][4], const std::uint32_t (&a)[4],
                                          MatrixDescriptor b) {
  static_assert(tiles == 8 || tiles == 16);
#ifndef __CUDACC__
  simt::wgmma<T>(&d[0][0], tiles, a, 0, b, true);
#elif defined(SLUICE_HAS_WGMMA)
#define SLUICE_WGMMA_ADD_64(types)                                             \
  asm volatile(                                                                \
      "{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"                           \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." types " {" SLUICE_NAMES_32 \
      "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}\n"                       \
      : SLUICE_SUMS_32(0)                                                      \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define SLUICE_WGMMA_ADD_128(types)                                             \
  asm volatile(                                                                 \
      "{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"                            \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." types " {" SLUICE_NAMES_64 \
      "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}\n"                        \
      : SLUICE_SUMS_32(0), SLUICE_SUMS_32(8)                                    \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
  if constexpr (tiles == 8 && std::is_same_v<T, Half>)
    SLUICE_WGMMA_ADD_64("f16.f16");
  else if constexpr (tiles == 8)
    SLUICE_WGMMA_ADD_64("bf16.bf16");
  else if constexpr (std::is_same_v<T, Half>)
    SLUICE_WGMMA_ADD_128("f16.f16");
  else
    SLUICE_WGMMA_ADD_128("bf16.bf16");
#undef SLUICE_WGMMA_ADD_64
#undef SLUICE_WGMMA_ADD_128
#endif
}

#undef SLUICE_SUMS_4
#undef SLUICE_SUMS_16
#undef SLUICE_SUMS_32
#undef SLUICE_NAMES_32
#undef SLUICE_NAMES_64

}  // namespace sluice::cuda
