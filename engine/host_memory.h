#pragma once

#include "engine/device_context.h"

namespace sluice {

/// Host memory beside a device, as DeviceContexts of its own. The arena of each is one region of
/// exactly the requested bytes, reserved at once. A kind of which no bytes were requested is null.
struct HostMemory {
  DevicePtr pinned{};    ///< page-locked; the device's copies overlap with its computation
  DevicePtr ordinary{};  ///< pageable; only the CPU computes on it
  /// True if the system refused to pin the `pinned` region; copies then block the host.
  bool unpinned = false;
};

/// The regions of a `meta` device only count bytes. Throws Error when the system lacks the memory.
HostMemory make_host_memory(const DevicePtr& device, std::size_t pinned_bytes,
                            std::size_t ordinary_bytes = 0);

}  // namespace sluice
