#pragma once

#include <cstdint>

namespace sluice::simt {

// kernels/cuda/ptx/wgmma.h on the emulated GPU. Each warp computes its own 16 rows. A product reads
// its operands when it starts or as late as in the wait; a seeded random choice decides. Until the
// wait its accumulators are NaN.

/// The distance of an address from the start of shared memory.
std::uintptr_t shared_offset(const void* address);

/// `sums`: tiles x 4 of this lane. `a`: the left operand in registers, 4 words, or null: then
/// `left` describes it, and b is read along rows, otherwise along columns.
template <class T>
void wgmma(float* sums, int tiles, const std::uint32_t* a, std::uint64_t left, std::uint64_t b,
           bool add);
void wgmma_commit();
void wgmma_wait(unsigned pending);

}  // namespace sluice::simt
