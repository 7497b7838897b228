#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/cuda/device/check.h"

namespace sluice::cuda {

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using OwnedEvent = std::unique_ptr<CUevent_st, EventDeleter>;

/// Creates an event, with timing, on the device that the calling thread has selected.
inline OwnedEvent make_owned_event() {
  cudaEvent_t event = nullptr;
  SLUICE_CUDA_CHECK(cudaEventCreate(&event));
  return OwnedEvent(event);
}

inline double milliseconds_between(cudaEvent_t from, cudaEvent_t to) {
  float milliseconds = 0;
  SLUICE_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, from, to));
  return static_cast<double>(milliseconds);
}

}  // namespace sluice::cuda
