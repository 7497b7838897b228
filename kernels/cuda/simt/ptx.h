#pragma once

#include <cstdint>

// The instructions of kernels/cuda/ptx on the emulated GPU.

namespace sluice::simt {

// Emulates cp.async as the hardware may do it: each copy lands either at once or when its group is
// waited for; a seeded random choice decides. A missing wait thus reads the old contents of shared
// memory, and a copy that starts too early overwrites data that others still read.

void cp_async_16(std::uintptr_t to, const void* from, bool valid);
void cp_async_commit();
void cp_async_wait(unsigned pending);

// The warp's matrix instructions, following the fragment layouts in the PTX ISA, sections "Matrix
// fragments for mma.m16n8k16" and "ldmatrix".

template <class T>
void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                 const float (&c)[4]);
void ldmatrix_x4(std::uint32_t (&to)[4], std::uintptr_t row, bool transposed);

}  // namespace sluice::simt
