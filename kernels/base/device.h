#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

/// `meta` runs no kernels: addresses are fake, but allocations are counted as on a real device.
enum class DeviceKind : std::uint8_t { cpu, cuda, meta };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  bool operator==(const Device&) const = default;
};

constexpr std::string_view name_of(DeviceKind kind) {
  constexpr std::string_view names[] = {"cpu", "cuda", "meta"};
  return names[static_cast<std::size_t>(kind)];
}

/// A handle of a stream: a queue of work on one device. The Runtime that made it owns the object
/// that `id` names. On the CPU and on `meta`, where calls are synchronous, every id is 0.
struct Stream {
  Device device;
  std::uint64_t id = 0;
};

/// A handle of an event: a point in a stream that other streams or the host can wait for.
struct Event {
  std::uint64_t id = 0;
};

/// A handle of work that a stream can be given again and again at once (a CUDA graph).
struct Graph {
  std::uint64_t id = 0;
};

}  // namespace sluice
