#pragma once

#include <cstdint>

#include "kernels/base/device.h"

namespace sluice {

/// Value handle of a queue of work on one device; the Runtime of that device owns what `id` names.
/// Stream 0 is the compute stream. On the CPU work is done when the call returns.
struct Stream {
  Device device;
  std::uint64_t id = 0;
};

}  // namespace sluice
