#pragma once

#include <vector>

#include "engine/device_context.h"

// Tests of the engine, the models and training run on every device that this build can use.

namespace sluice::test {

/// The CPU, and CUDA where this program has it and there is a device (real or emulated).
inline std::vector<DeviceKind> device_kinds() {
  std::vector<DeviceKind> kinds{DeviceKind::cpu};
  if (cuda_devices() > 0) kinds.push_back(DeviceKind::cuda);
  return kinds;
}

inline DevicePtr open_device(DeviceKind kind) {
  return kind == DeviceKind::cuda ? make_cuda_device(0, std::size_t{1} << 30) : make_cpu_device();
}

}  // namespace sluice::test
