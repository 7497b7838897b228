#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "engine/offload/tensor_offload.h"

namespace sluice {

/// Offloads tensors to host memory between a forward pass and its backward pass, as a stack (last
/// in, first out). Copies run on two streams beside the compute stream. The two tensors pushed last
/// stay on the device. While one tensor is in use, the next one below it is copied back, so that
/// computation can hide each copy.
class HostStack {
 public:
  /// Represents a tensor on the stack. Dropping the ticket without take() discards the tensor.
  using Ticket = std::shared_ptr<const std::size_t>;

  /// `host` may be null if the stack never holds more than one tensor.
  HostStack(DevicePtr device, DevicePtr host) : offload_(std::move(device), std::move(host)) {}

  void set_timeline(Timeline* timeline) { offload_.set_timeline(timeline); }

  /// Pushes the elements of `tensor`. Nobody may write to them afterwards.
  Ticket put(Tensor tensor);
  /// Pops the tensor, without its autograd history. `ticket` must be the topmost one left.
  Tensor take(const Ticket& ticket);
  /// Returns the tensor while it is on the device, else none.
  Tensor at_hand(const Ticket& ticket) const { return slots_[*ticket].item.data; }

  /// Returns the bytes copied each way since the last call.
  StreamedBytes take_moved() { return offload_.take_moved(); }

 private:
  /// Entry at one depth of the stack; every pass reuses it.
  struct Slot {
    TensorOffload::Item item;
    std::weak_ptr<const std::size_t> ticket{};
  };
  void drop_given_up();

  TensorOffload offload_;
  std::vector<Slot> slots_;
  std::size_t depth_ = 0;
};

}  // namespace sluice
