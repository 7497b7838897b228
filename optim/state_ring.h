#pragma once

#include <cstdint>
#include <vector>

#include "engine/streamed_bytes.h"
#include "engine/tensor.h"
#include "engine/timeline.h"

namespace sluice {

/// Brings state that rests in host memory to the device and back, item by item in a fixed order,
/// on two streams beside the one that computes. A ring of places on the device holds the items
/// that are on their way; three events of each order the streams:
///   arrived   to-device -> compute   the copy is there
///   updated   compute -> to-host     the update has been given all its work
///   drained   to-host -> to-device   the bytes rest on the host again and the place is free
class StateRing {
 public:
  /// An item is one or more host tensors, whose bytes lie one after another in a place.
  using Item = std::vector<Tensor>;

  /// Takes `places` times the largest item from the device.
  StateRing(const DevicePtr& device, std::vector<Item> items, int places);
  /// Waits for what is under way: its memory is free for others afterwards.
  ~StateRing();
  StateRing(const StateRing&) = delete;
  StateRing& operator=(const StateRing&) = delete;

  /// Records copies ("fetch", "drain") and what the compute stream waits for them ("stall").
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  std::size_t items() const { return items_.size(); }
  /// Starts copying the first items of a round; may be called before the round begins.
  void prefetch();
  /// The addresses, on the device, of the parts of the next item: what the compute stream is given
  /// from now on finds them filled.
  std::vector<std::byte*> take();
  /// The item taken last has been given its update; starts its way back.
  void done();
  bool finished() const { return taken_ == items_.size(); }
  /// Begins the next round. Items prefetched stay prefetched.
  void rewind();
  /// Forgets what was fetched, since the host's copy is about to be written to.
  void forget();
  /// Waits until everything rests on the host.
  void settle();

  /// By the round that was finished last.
  const StreamedBytes& moved() const { return last_moved_; }

 private:
  struct Place {
    Tensor memory;
    Event arrived, updated, drained;
  };
  void fetch();
  Place& place_of(std::size_t turn) { return places_[turn % places_.size()]; }

  DevicePtr device_;
  Stream to_device_, to_host_;
  std::vector<Item> items_;
  std::vector<Place> places_;
  std::vector<std::size_t> last_turn_;   ///< of each item; its place's `drained` covers it
  std::size_t turn_ = 0;                 ///< of the item to be taken next, over all rounds
  std::size_t fetched_ = 0, taken_ = 0;  ///< items of this round
  StreamedBytes moved_, last_moved_;
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
