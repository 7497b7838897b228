#pragma once

#include <cuda_runtime_api.h>

#include <unordered_map>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/queue.h"

namespace sluice::cuda {

class GemmPlans;

/// The queue of a real GPU. The runtime that made it owns the objects that it points to.
struct DeviceQueue : Queue {
  int device = 0;
  cudaStream_t handle = nullptr;
  GemmPlans* gemms = nullptr;  ///< shared by all streams of a runtime
  std::unordered_map<const void*, std::size_t> shared_allowed{};  ///< by kernel, if it was raised
};

inline DeviceQueue& device_queue_of(Stream stream) {
  return static_cast<DeviceQueue&>(queue_of(stream));
}

/// Selects the stream's device, because CUDA calls go to the device that the calling thread has
/// selected, and returns CUDA's handle of the stream.
inline cudaStream_t handle_of(Stream stream) {
  const DeviceQueue& queue = device_queue_of(stream);
  SLUICE_CUDA_CHECK(cudaSetDevice(queue.device));
  return queue.handle;
}

}  // namespace sluice::cuda
