#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/device_context.h"

// The GPU of this build, real or emulated, as the engine uses it.

namespace sluice::test {

/// Returns true if this program can use a GPU; otherwise warns and returns false.
bool have_gpu();

/// Opens the GPU. Emulated GPUs with other seeds are other GPUs, and execute streams in another
/// order; a real GPU orders them by itself, so that another seed is just one more run. The
/// runtime's workspace, whose size depends on the GPU, does not count towards `budget`.
DevicePtr open_gpu(std::uint64_t seed, std::size_t budget = std::size_t{64} << 20);

/// Device memory that each rank of a test takes.
constexpr std::size_t memory_of_rank = std::size_t{64} << 20;
/// Returns a device for a rank that is a thread of the test.
DevicePtr device_of_rank(DeviceKind kind, int rank);

/// Returns the GPU's runtime alone, for tests that modify the device.
std::unique_ptr<Runtime> gpu_runtime(std::uint64_t seed);

}  // namespace sluice::test
