#pragma once

#include <cstdint>

#include "kernels/base/device.h"

namespace sluice {

/// Value handle of a queue of work on one device. The Runtime that made it owns the object that
/// `id` names. On the CPU and on `meta`, where work is done when a call returns, every id is 0.
struct Stream {
  Device device;
  std::uint64_t id = 0;
};

/// Value handle of a point in a stream that other streams, or the host, can wait for.
struct Event {
  std::uint64_t id = 0;
};

}  // namespace sluice
