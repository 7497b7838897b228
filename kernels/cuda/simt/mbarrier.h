#pragma once

#include <cstdint>

namespace sluice::simt {

// kernels/cuda/ptx/mbarrier.h on the emulated GPU. A barrier's 8 bytes in shared memory hold its
// state, as on a GPU.

void mbarrier_init(std::uintptr_t barrier, unsigned arrivals);
/// `bytes` more are expected in this phase.
void mbarrier_arrive(std::uintptr_t barrier, unsigned bytes);
void mbarrier_wait(std::uintptr_t barrier, unsigned parity);
/// Expected bytes have arrived.
void mbarrier_complete(std::uintptr_t barrier, unsigned bytes);

}  // namespace sluice::simt
