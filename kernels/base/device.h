#pragma once

#include <cstdint>
#include <string_view>

namespace sluice {

/// `meta` runs nothing and counts: fake addresses, real allocation arithmetic.
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
