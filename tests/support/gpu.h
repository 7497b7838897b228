#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/device_context.h"

// The GPU of this build, real or emulated, as the engine uses it.

namespace sluice::test {

/// False, with a warning, where this program can use none.
bool have_gpu();

/// On the emulated GPU `seed` decides the order in which streams are emptied; a real one orders
/// them by itself, so that another seed is one more run.
DevicePtr open_gpu(std::uint64_t seed, std::size_t budget = std::size_t{64} << 20);

/// How much memory a rank of a test takes of its device.
constexpr std::size_t memory_of_rank = std::size_t{64} << 20;
/// A device for a rank that is a thread of the test.
DevicePtr device_of_rank(DeviceKind kind, int rank);

/// Its runtime alone, for a device that a test changes.
std::unique_ptr<Runtime> gpu_runtime(std::uint64_t seed);

}  // namespace sluice::test
