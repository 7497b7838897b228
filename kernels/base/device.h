#pragma once

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
  switch (kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::cuda:
      return "cuda";
    case DeviceKind::meta:
      return "meta";
  }
  return "?";
}

}  // namespace sluice
