#pragma once

#include <cstdint>

namespace sluice {

/// Bytes copied between a device and host memory.
struct StreamedBytes {
  std::uint64_t to_device = 0;
  std::uint64_t to_host = 0;
};

}  // namespace sluice
