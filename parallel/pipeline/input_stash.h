#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "engine/offload/tensor_offload.h"

namespace sluice {

/// The inputs that a rank keeps of its micro-batches. As many stay on the device as a bound allows;
/// the others rest in host memory. Each copy to the host overlaps with the computation of the next
/// micro-batch, each copy back with that of the one before.
class InputStash {
 public:
  /// Names an input between put() and take().
  using Ticket = std::size_t;

  /// `max_bytes`: those of inputs that stay on the device.
  InputStash(const DevicePtr& device, const DevicePtr& host, std::size_t max_bytes)
      : offload_(device, host), max_bytes_(max_bytes) {}

  void set_timeline(Timeline* timeline) { offload_.set_timeline(timeline); }
  /// Returns the bytes copied each way since the last call.
  StreamedBytes take_moved() { return offload_.take_moved(); }

  /// Keeps an input. Nobody may write to it afterwards.
  Ticket put(Tensor input);
  /// Starts to bring an input back. A later take() then need not wait for all of the copy.
  void prefetch(Ticket ticket) { offload_.fetch(slots_[ticket].item); }
  /// Returns an input without its autograd history, for use in the compute stream.
  Tensor take(Ticket ticket);

 private:
  struct Slot {
    TensorOffload::Item item;
    std::size_t stays = 0;  ///< bytes that count for the bound
  };

  TensorOffload offload_;
  std::size_t max_bytes_, bytes_ = 0;
  std::vector<Slot> slots_;
  std::vector<Ticket> free_;    ///< slots without an input
  std::deque<Ticket> leaving_;  ///< on their way to the host; their device memory is still taken
};

}  // namespace sluice
