#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/pinned_buffer.h"
#include "engine/tensor.h"

namespace sluice {

/// Brings micro-batches to the device while the one before is computed on: two places there, two
/// pinned ones on the host, and a stream of its own.
class BatchUpload {
 public:
  struct MicroBatch {
    Tensor tokens, targets;
  };

  /// Micro-batches of `rows` x `columns` ids. Without `own_stream` copies take their turn in the
  /// compute stream.
  BatchUpload(const DevicePtr& device, std::int64_t rows, std::int64_t columns,
              bool own_stream = true);
  BatchUpload(const BatchUpload&) = delete;
  BatchUpload& operator=(const BatchUpload&) = delete;

  /// Starts copying; at most one more micro-batch may be on its way.
  void start(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets);
  /// The oldest that was started; what the compute stream is given from now on finds it there.
  MicroBatch take();
  /// The one taken last has been given all its work: its place may be filled again after that.
  void done();

 private:
  struct Place {
    MicroBatch batch;
    PinnedBuffer staged;
    Event arrived, free;
  };

  DevicePtr device_;
  Stream stream_;
  std::size_t bytes_;  ///< of the ids of one micro-batch
  std::array<Place, 2> places_;
  std::size_t started_ = 0, taken_ = 0;
};

}  // namespace sluice
