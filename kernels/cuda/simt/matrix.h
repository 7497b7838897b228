#pragma once

#include <cstdint>

namespace sluice::simt {

// The warp's matrix instructions, following the fragment layouts in the PTX ISA, sections "Matrix
// fragments for mma.m16n8k16" and "ldmatrix".

template <class T>
void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
void ldmatrix_x4(std::uint32_t (&to)[4], const void* row, bool transposed);

}  // namespace sluice::simt
