#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/host_memory.h"
#include "engine/tensor.h"

namespace sluice {

/// Copies micro-batches to the device while the previous one is computed on. It has two device
/// buffers, two pinned host buffers and a stream of its own.
class BatchUpload {
 public:
  struct MicroBatch {
    Tensor tokens, targets;
  };

  /// Micro-batches are `rows` x `columns` ids. Without `own_stream` the copies are queued in the
  /// compute stream.
  BatchUpload(const DevicePtr& device, std::int64_t rows, std::int64_t columns,
              bool own_stream = true);
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
    PinnedBuffer staged;
    Event arrived, free;
  };

  DevicePtr device_;
  Stream stream_;
  std::size_t bytes_;  ///< bytes of one micro-batch's ids
  std::array<Buffer, 2> buffers_;
  std::size_t started_ = 0, taken_ = 0;
};

}  // namespace sluice
