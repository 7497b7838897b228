#pragma once

#include <cstdint>
#include <utility>

#include "engine/host_memory.h"
#include "engine/tensor.h"
#include "engine/timeline.h"

namespace sluice {

/// Copies tensors to host memory and back on two streams beside the compute stream.
class TensorOffload {
 public:
  /// A tensor on the device, in host memory, or on its way.
  struct Item {
    enum class Where : std::uint8_t { device, leaving, host, coming };

    Tensor data{};     ///< copy on the device
    Tensor resting{};  ///< copy in host memory
    Where where = Where::device;
    Event ready{};    ///< compute stream -> either copy stream: the memory may be read or written
    Event drained{};  ///< the copy to the host is done
    Event arrived{};  ///< the copy from the host is done
  };

  /// `host` may be null if no tensor ever leaves.
  TensorOffload(DevicePtr device, DevicePtr host);
  /// Waits for the copies in flight, so that their memory is free for other use afterwards.
  ~TensorOffload();
  TensorOffload(const TensorOffload&) = delete;
  TensorOffload& operator=(const TensorOffload&) = delete;

  /// Records copies ("put down", "take up") and waits of the compute stream for them ("stall").
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  /// Makes an item without a tensor. Its events can serve one tensor after another.
  Item make_item();
  /// Starts to copy a tensor on the device to the host. Nobody may write to it afterwards.
  void leave(Item& item);
  /// Releases the device memory of a tensor that is leaving, for reuse by whatever is computed once
  /// the copy is done.
  void let_go(Item& item);
  /// Starts to copy a tensor in host memory to the device. Its host memory may be written to again
  /// by copies that begin after take().
  void fetch(Item& item);
  /// Returns the tensor, for use in the compute stream. It must not be in host memory alone.
  Tensor take(Item& item);
  /// Releases the tensor's device memory. A copy in host memory is of no use any more.
  void drop(Item& item);

  /// Returns the bytes copied each way since the last call.
  StreamedBytes take_moved() { return std::exchange(moved_, {}); }

 private:
  void wait(Event event);

  DevicePtr device_, host_;
  Stream to_host_, to_device_;
  StreamedBytes moved_;
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
