#pragma once

#include <cstdint>

namespace sluice {

/// Where the optimizer state of a large matrix rests between updates, and where it is updated.
enum class Residency : std::uint8_t {
  device,    ///< in device memory
  streamed,  ///< in pinned host memory; copied to the device for its update
  /// The same, and updated during the backward pass, before it is certain that the update stands.
  speculative,
  cpu  ///< in host memory, where the CPU updates it
};

}  // namespace sluice
