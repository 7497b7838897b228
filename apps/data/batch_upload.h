#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/host_memory.h"
#include "engine/tensor.h"

namespace sluice {

/// Copies micro-batches to the device while the previous one is computed on. It has two device
/// buffers, a stream of its own, and a pinned host buffer for each micro-batch of a step, so that
/// the host waits for no copy of the same step.
class BatchUpload {
 public:
  struct MicroBatch {
    Tensor tokens, targets;
  };

  /// Micro-batches are `rows` x `columns` ids, `each_step` of them in a step. Without `own_stream`
  /// the copies are queued in the compute stream.
  BatchUpload(const DevicePtr& device, std::int64_t rows, std::int64_t columns,
              std::int64_t each_step, bool own_stream = true);
  BatchUpload(const BatchUpload&) = delete;
  BatchUpload& operator=(const BatchUpload&) = delete;

  /// Starts copying a micro-batch. At most one more may be in flight.
  void start(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets);
  /// Returns the oldest micro-batch started; work queued in the compute stream from now on sees it.
  MicroBatch take();
  /// Marks the micro-batch taken last as used: its buffer is refilled after the work queued so far.
  void done();

 private:
  struct Buffer {
    MicroBatch batch;
    Event free;
  };
  struct Staged {
    PinnedBuffer ids;
    Event arrived;
  };

  DevicePtr device_;
  Stream stream_;
  std::size_t bytes_;  ///< bytes of one micro-batch's ids
  std::array<Buffer, 2> buffers_;
  std::vector<Staged> staged_;
  std::size_t started_ = 0, taken_ = 0;
};

}  // namespace sluice
