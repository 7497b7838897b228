#pragma once

#include <cstdint>
#include <vector>

#include "engine/tensor.h"

namespace sluice {

/// The losses of an update's micro-batches, on the host: they take none of the device's memory,
/// however many there are, and the host waits for all of them at once.
class LossRecord {
 public:
  LossRecord(const DevicePtr& device, std::int64_t micro_batches, DType dtype);
  ~LossRecord();
  LossRecord(const LossRecord&) = delete;
  LossRecord& operator=(const LossRecord&) = delete;

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
  std::vector<std::byte> pageable_;  ///< where the system pins no memory
  std::byte* values_;
};

}  // namespace sluice
