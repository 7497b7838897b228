#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/host_memory.h"
#include "engine/tensor.h"
#include "engine/timeline.h"

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
  HostStack(DevicePtr device, DevicePtr host);
  /// Waits for the copies in flight, so that their memory is free for other use afterwards.
  ~HostStack();
  HostStack(const HostStack&) = delete;
  HostStack& operator=(const HostStack&) = delete;

  /// Records copies ("put down", "take up") and waits of the compute stream for them ("stall").
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  /// Pushes the elements of `tensor`. Nobody may write to them afterwards.
  Ticket put(Tensor tensor);
  /// Pops the tensor, without its autograd history. `ticket` must be the topmost one left.
  Tensor take(const Ticket& ticket);
  /// Returns the tensor while it is on the device, else none.
  Tensor at_hand(const Ticket& ticket) const { return slots_[*ticket].data; }

  /// Returns the bytes copied each way since the last call.
  StreamedBytes take_moved() { return std::exchange(moved_, {}); }

 private:
  enum class Where : std::uint8_t { device, leaving, host, coming };
  /// Entry at one depth of the stack; every pass reuses it.
  struct Slot {
    Tensor data{};     ///< copy on the device
    Tensor resting{};  ///< copy in host memory
    Where where = Where::device;
    Event ready;    ///< compute stream -> either copy stream: the memory may be read or written
    Event drained;  ///< the copy to the host is done
    Event arrived;  ///< the copy from the host is done
    std::weak_ptr<const std::size_t> ticket{};
  };
  void drop_given_up();
  void leave(Slot& slot);
  void let_go(Slot& slot);
  void fetch(Slot& slot);
  void wait(Event event);

  DevicePtr device_, host_;
  Stream to_host_, to_device_;
  std::vector<Slot> slots_;
  std::size_t depth_ = 0;
  StreamedBytes moved_;
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
