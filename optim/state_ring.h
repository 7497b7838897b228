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
/// The updates of the first items may be speculative: a round can take them back.
///   saved     to-host -> compute     the weights that such an update will change rest on the host
class StateRing {
 public:
  /// An item is one or more host tensors, whose bytes lie one after another in a place.
  using Item = std::vector<Tensor>;

  /// What is kept so that the update of an item can be taken back, bit by bit.
  struct Speculation {
    Item next{};   ///< where its bytes rest after the update
    View weights;  ///< on the device: what the update changes beside the item
    Tensor saved;  ///< on the host: what they were
  };

  /// Takes `places` times the largest item from the device. `speculative`: of the first items.
  StateRing(const DevicePtr& device, std::vector<Item> items, int places,
            std::vector<Speculation> speculative = {});
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
  bool finished() const { return taken_ == order_.size(); }
  /// Begins the next round. Items prefetched stay prefetched.
  void rewind();
  /// The speculative items are what their updates have made them.
  void keep();
  /// They are what they were: they come once more at the end of this round, the last one first, and
  /// the weights are as they were when they have come.
  void take_back();
  /// Gives a round up in which none but speculative items have been taken: they and the weights are
  /// what they were. Waits for that.
  void abandon();
  /// Forgets what was fetched, since the host's copy is about to be written to.
  void forget();
  /// Waits until everything rests on the host.
  void settle();

  /// By the round that ended last.
  const StreamedBytes& moved() const { return last_moved_; }

 private:
  struct Place {
    Tensor memory;
    Event arrived, updated, drained, saved;
  };
  void fetch();
  void save_weights(std::size_t item);
  void restore_weights(std::size_t item);
  void copy_to_host(const Tensor& to, const std::byte* from);
  void begin();
  bool speculative(std::size_t turn) const {
    return turn < speculative_.size();  // the others come after them, and again after all
  }
  Place& place_of(std::size_t turn) { return places_[turn % places_.size()]; }

  DevicePtr device_;
  Stream to_device_, to_host_;
  std::vector<Item> items_;
  std::vector<Speculation> speculative_;  ///< of the first items
  std::vector<std::size_t> order_;        ///< items of this round; beyond their number: again
  std::vector<Place> places_;
  std::vector<std::size_t> last_turn_;   ///< of each item; its place's `drained` covers it
  std::size_t turn_ = 0;                 ///< of the item to be taken next, over all rounds
  std::size_t fetched_ = 0, taken_ = 0;  ///< of order_
  StreamedBytes moved_, last_moved_;
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
