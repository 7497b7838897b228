#pragma once

#include <cstdint>
#include <vector>

#include "engine/host_memory.h"
#include "engine/tensor.h"
#include "engine/timeline.h"

namespace sluice {

/// Copies data for chunks whose state the CPU updates in host memory: gradients (and weights, if
/// the update reads them) from the device to staging buffers in host memory, then the updated
/// weights back. It goes chunk by chunk in a fixed order, on two streams beside the compute stream.
/// It copies one half to one third of the bytes that streaming the state to the device would take.
class CpuUpdater {
 public:
  /// The arrays of one chunk on the device.
  struct Item {
    View gradient;
    View weights;        ///< the working weights, with which the model computes
    bool reads_weights;  ///< the update reads the weights; otherwise it only writes them
  };
  /// The staged copies of these arrays in host memory.
  struct Staged {
    View gradient;
    View weights;
    View scale;  ///< the gradient scale; none if round() was given none
  };

  /// Allocates `buffers` staging buffers, each as large as the largest item, from `host`.
  CpuUpdater(const DevicePtr& device, const DevicePtr& host, std::vector<Item> items, int buffers);
  /// Waits for copies under way.
  ~CpuUpdater();
  CpuUpdater(const CpuUpdater&) = delete;
  CpuUpdater& operator=(const CpuUpdater&) = delete;

  /// Records copies ("gradients", "weights").
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  /// Begins a round: starts copying the first items to the host. All work that writes the gradients
  /// and `scale` (one element, or none) must already be queued in the compute stream. The last
  /// round must be done or abandoned.
  void round(const View& scale);
  /// Waits until the next item has arrived and returns its staged copies.
  Staged take();
  /// Marks the item taken last as updated and starts copying its weights back. Copies nothing if
  /// the scale is not finite. No work in the compute stream may read these weights before
  /// deliver().
  void done();
  /// Makes work queued in the compute stream after this call see the weights of an item that is
  /// done.
  void deliver(std::size_t item);
  /// The CPU stream on which the updates run.
  Stream host_stream() const { return scale_memory_.stream(); }
  /// Waits until all copies are complete.
  void synchronize();

  /// Bytes copied by the last complete round.
  const StreamedBytes& moved() const { return last_moved_; }

 private:
  struct Buffer {
    Tensor memory;
    Event arrived, delivered;
  };
  Staged views_of(const Item& item, const Buffer& buffer) const;
  void fetch();
  void copy_to_host(const View& to, const View& from);
  bool changes() const;
  Buffer& buffer_of(std::size_t item) { return buffers_[item % buffers_.size()]; }

  DevicePtr device_;
  Stream to_device_, to_host_;
  std::vector<Item> items_;
  std::vector<Buffer> buffers_;
  Tensor scale_memory_;
  View scale_;                           ///< the scale's place in scale_memory_
  Event ready_;                          ///< compute -> to-host: gradients and scale are final
  std::size_t fetched_ = 0, taken_ = 0;  ///< items of this round so far
  StreamedBytes moved_, last_moved_;
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
