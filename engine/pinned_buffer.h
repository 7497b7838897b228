#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/device_context.h"

namespace sluice {

/// Host memory that a device copies from and to without making the host wait; ordinary memory where
/// the system pins none.
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
