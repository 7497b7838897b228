#pragma once

#include <cstdint>
#include <vector>

#include "engine/host_memory.h"
#include "engine/tensor.h"

namespace sluice {

/// The losses of an update's micro-batches and the norm of its gradient, in pinned host memory.
/// They take no device memory, and the host waits once for all of them. By then the device may have
/// been given the update and computes it while the host goes on.
class StepNumbers {
 public:
  /// `dtype`: of the losses.
  StepNumbers(const DevicePtr& device, std::int64_t micro_batches, DType dtype);

  /// Sets all losses to zero.
  void clear_losses();
  /// Queues a copy of `loss`, one element of the dtype, to the host on the loss's stream.
  void keep_loss(std::int64_t micro_batch, const Tensor& loss);
  /// Queues a copy of the norm, one f64. It comes last: all losses have been kept.
  void keep_norm(const Tensor& norm);

  /// These wait for the copy of the norm, but for no later work.
  std::vector<double> losses(std::int64_t count) const;
  double norm() const;

 private:
  DevicePtr device_;
  DType dtype_;
  std::size_t loss_bytes_;
  PinnedBuffer losses_, norm_;
  Event complete_;
};

}  // namespace sluice
