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

/// Its runtime alone, for a device that a test changes.
std::unique_ptr<Runtime> gpu_runtime(std::uint64_t seed);

}  // namespace sluice::test
