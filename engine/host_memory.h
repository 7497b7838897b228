#pragma once

#include "engine/device_context.h"

namespace sluice {

/// Host memory beside a device, as devices of their own: the arena of each is one region of exactly
/// so many bytes, reserved at once. None where nothing was asked for.
struct HostMemory {
  DevicePtr pinned{};    ///< from and to which the device copies beside its computing
  DevicePtr ordinary{};  ///< on which only the CPU works
  /// The system refused to pin the first: copies make the host wait.
  bool unpinned = false;
};

/// On `meta` both only count. Throws Error when the system does not have the memory.
HostMemory make_host_memory(const DevicePtr& device, std::size_t pinned_bytes,
                            std::size_t ordinary_bytes = 0);

}  // namespace sluice
