#pragma once

#include <cstdint>
#include <vector>

#include "engine/pinned_buffer.h"
#include "engine/tensor.h"

namespace sluice {

/// The losses of an update's micro-batches, on the host: they take none of the device's memory,
/// however many there are, and the host waits for all of them at once.
class LossRecord {
 public:
  LossRecord(const DevicePtr& device, std::int64_t micro_batches, DType dtype);

  /// All are zero until they are kept.
  void clear();
  /// One element of the dtype, once what computes it is done.
  void keep(std::int64_t micro_batch, const Tensor& loss);
  /// Of the first `count`. Waits for the device.
  std::vector<double> values(std::int64_t count) const;

 private:
  DevicePtr device_;
  DType dtype_;
  std::size_t bytes_;
  PinnedBuffer values_;
};

}  // namespace sluice
