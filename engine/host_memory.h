#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/device_context.h"

namespace sluice {

class FileMemory;

/// Host memory beside a device, as DeviceContexts of its own. The arena of each is one region of
/// exactly the requested bytes, reserved at once. A kind of which no bytes were requested is null.
struct HostMemory {
  DevicePtr pinned{};    ///< page-locked; the device's copies overlap with its computation
  DevicePtr ordinary{};  ///< pageable; only the CPU computes on it
  /// Holds state that would else rest in host memory; null: none does. The caller sets it.
  std::shared_ptr<FileMemory> file{};
  /// True if the system refused to pin all of the `pinned` region; copies from and to the rest of
  /// it block the host.
  bool unpinned = false;
  std::size_t pinned_bytes = 0;  ///< that the system did pin
};

/// The regions of a `meta` device only count bytes. Throws Error when the system lacks the memory.
/// Some drivers pin no block as large as the region. It is then pinned in pieces of `piece` bytes,
/// as many as the system allows.
HostMemory make_host_memory(const DevicePtr& device, std::size_t pinned_bytes,
                            std::size_t ordinary_bytes = 0,
                            std::size_t piece = std::size_t{1} << 30);

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

/// Bytes copied between a device and host memory, and between memory and a file (FileMemory).
struct StreamedBytes {
  std::uint64_t to_device = 0;
  std::uint64_t to_host = 0;
  std::uint64_t from_file = 0;
  std::uint64_t to_file = 0;

  StreamedBytes& operator+=(const StreamedBytes& other) {
    to_device += other.to_device;
    to_host += other.to_host;
    from_file += other.from_file;
    to_file += other.to_file;
    return *this;
  }
};

}  // namespace sluice
