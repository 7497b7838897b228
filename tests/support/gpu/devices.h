#pragma once

#include <vector>

#include "engine/device_context.h"

// Tests of the engine, models and training run on every device that this build can use.

namespace sluice::test {

/// Returns the CPU, and CUDA if this program was built with it and a (real or emulated) GPU exists.
inline std::vector<DeviceKind> device_kinds() {
  std::vector<DeviceKind> kinds{DeviceKind::cpu};
  if (cuda_devices() > 0) kinds.push_back(DeviceKind::cuda);
  return kinds;
}

inline DevicePtr open_device(DeviceKind kind) {
  return kind == DeviceKind::cuda ? make_cuda_device(0, std::size_t{1} << 30) : make_cpu_device();
}

}  // namespace sluice::test
