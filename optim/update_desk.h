#pragma once

#include <cstdint>
#include <vector>

#include "engine/streamed_bytes.h"
#include "engine/tensor.h"
#include "engine/timeline.h"

namespace sluice {

/// Where the CPU updates what rests in host memory: brings the gradients of chunks, and their
/// weights where the update reads them, from the device to places in host memory, and the updated
/// weights back; chunk by chunk in a fixed order, on two streams beside the one that computes. What
/// moves is a half to a third of what state would be that visits the device.
class UpdateDesk {
 public:
  /// What a chunk has on the device.
  struct Item {
    View gradient;
    View weights;        ///< what the model computes with
    bool reads_weights;  ///< the update does, else it only writes them
  };
  /// The same in host memory.
  struct AtHand {
    View gradient;
    View weights;
    View scale;  ///< none where round() was given none
  };

  /// Takes `places` times the largest item from `host`.
  UpdateDesk(const DevicePtr& device, const DevicePtr& host, std::vector<Item> items, int places);
  /// Waits for what is under way.
  ~UpdateDesk();
  UpdateDesk(const UpdateDesk&) = delete;
  UpdateDesk& operator=(const UpdateDesk&) = delete;

  /// Records copies ("gradients", "weights") and how long the compute stream waits ("stall").
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  /// Begins a round, the last one done or given up: the compute stream has been given all work on
  /// gradients and `scale`, one element. Starts to copy the first items.
  void round(const View& scale);
  /// Waits for the next item.
  AtHand take();
  /// The item taken last has been updated. Starts its weights' way back, unless the scale is not
  /// finite and nothing has changed: what the compute stream is given from now on finds them there.
  void done();
  /// Where the CPU's work belongs.
  Stream host_stream() const { return scale_memory_.stream(); }
  /// Waits until everything is where it belongs.
  void settle();

  /// By the round that was finished last.
  const StreamedBytes& moved() const { return last_moved_; }

 private:
  struct Place {
    Tensor memory;
    Event arrived, delivered;
  };
  AtHand views_of(const Item& item, const Place& place) const;
  void fetch();
  void copy_to_host(const View& to, const View& from);
  bool changes() const;
  Place& place_of(std::size_t item) { return places_[item % places_.size()]; }

  DevicePtr device_;
  Stream to_device_, to_host_;
  std::vector<Item> items_;
  std::vector<Place> places_;
  Tensor scale_memory_;
  View scale_;   ///< in it
  Event ready_;  ///< compute -> to-host: gradients and scale are final
  bool scaled_ = false;
  std::size_t fetched_ = 0, taken_ = 0;  ///< items of this round
  StreamedBytes moved_, last_moved_;
  Timeline* timeline_ = nullptr;
  std::size_t stall_ = 0;  ///< the span that take() has begun
};

}  // namespace sluice
