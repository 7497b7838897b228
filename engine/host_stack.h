#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/streamed_bytes.h"
#include "engine/tensor.h"
#include "engine/timeline.h"

namespace sluice {

/// Tensors of a device that rest in host memory between a forward pass and its backward pass: the
/// last one put down is the first taken up again. Copies run on two streams beside the one that
/// computes. The two put down last stay on the device, and of those on the host the next is on its
/// way back while the one above it is in use: so one step of computing hides each copy.
class HostStack {
 public:
  /// Stands for a tensor put down; who lets it go without taking the tensor up gives it up.
  using Ticket = std::shared_ptr<const std::size_t>;

  /// `host` may be none where no more than one tensor is ever put down.
  HostStack(DevicePtr device, DevicePtr host);
  /// Waits for what is under way: its memory is free for others afterwards.
  ~HostStack();
  HostStack(const HostStack&) = delete;
  HostStack& operator=(const HostStack&) = delete;

  /// Records copies ("put down", "take up") and what the compute stream waits for them ("stall").
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  /// The elements of `tensor`, which nobody may write to any more.
  Ticket put(Tensor tensor);
  /// What was put down, without its history. Its ticket must be the topmost that is left.
  Tensor take(const Ticket& ticket);
  /// The tensor while it is on the device, else none.
  Tensor at_hand(const Ticket& ticket) const { return places_[*ticket].data; }

  /// Bytes copied each way since it was last asked.
  StreamedBytes take_moved() { return std::exchange(moved_, {}); }

 private:
  enum class Where : std::uint8_t { device, leaving, host, coming };
  /// Of one depth; used again by every pass.
  struct Place {
    Tensor data{};     ///< on the device
    Tensor resting{};  ///< memory on the host
    Where where = Where::device;
    Event ready;    ///< compute stream -> either copy: the memory may be read or written
    Event drained;  ///< the copy to the host is done
    Event arrived;  ///< the copy from the host is done
    std::weak_ptr<const std::size_t> ticket{};
  };
  void drop_given_up();
  void leave(Place& place);
  void let_go(Place& place);
  void fetch(Place& place);
  void wait(Event event);

  DevicePtr device_, host_;
  Stream to_host_, to_device_;
  std::vector<Place> places_;
  std::size_t depth_ = 0;
  StreamedBytes moved_;
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
