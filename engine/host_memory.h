#pragma once

#include "engine/device_context.h"

namespace sluice {

/// Host memory that a device copies from and to beside its computing, as a device of its own: its
/// arena is one region of exactly `bytes`, reserved at once.
struct HostMemory {
  DevicePtr memory;
  /// False where the system refused to pin it: copies then make the host wait.
  bool pinned = true;
};

/// On `meta` it only counts. Throws Error when the system does not have the memory.
HostMemory make_host_memory(const DevicePtr& device, std::size_t bytes);

}  // namespace sluice
