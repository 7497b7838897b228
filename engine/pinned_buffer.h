#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/device_context.h"

namespace sluice {

/// Pinned host memory, from and to which a device copies without blocking the host. Falls back to
/// pageable memory if the system cannot pin any.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(DevicePtr device, std::size_t bytes);

  std::byte* data() { return pinned_ ? pinned_.get() : ordinary_.data(); }
  const std::byte* data() const { return pinned_ ? pinned_.get() : ordinary_.data(); }

 private:
  struct Release {
    DevicePtr device;
    std::size_t bytes;
    void operator()(std::byte* start) const;
  };
  std::unique_ptr<std::byte, Release> pinned_;
  std::vector<std::byte> ordinary_;
};

}  // namespace sluice
