#pragma once

#include <cstdint>
#include <vector>

#include "engine/host_memory.h"
#include "engine/tensor.h"

namespace sluice {

/// Keeps the losses of an update's micro-batches in pinned host memory, so that they take no device
/// memory and the host waits only once for all of them.
class LossRecord {
 public:
  LossRecord(const DevicePtr& device, std::int64_t micro_batches, DType dtype);

  /// Sets all losses to zero.
  void clear();
  /// Queues a copy of `loss`, one element of the dtype, to the host on the loss's stream.
  void keep(std::int64_t micro_batch, const Tensor& loss);
  /// Returns the first `count` losses. Waits for the device.
  std::vector<double> values(std::int64_t count) const;

 private:
  DevicePtr device_;
  DType dtype_;
  std::size_t bytes_;
  PinnedBuffer values_;
};

}  // namespace sluice
