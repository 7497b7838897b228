#pragma once

#include <cstdint>
#include <vector>

#include "engine/host_memory.h"
#include "engine/tensor.h"
#include "engine/timeline.h"

namespace sluice {

/// Streams optimizer state from host memory to the device and back, item by item in a fixed order,
/// on two streams beside the compute stream. A ring of device buffers holds the items that are on
/// the device or on their way. Three events for each buffer order the streams:
///   arrived   to-device -> compute   the copy to the device is complete
///   updated   compute -> to-host     the update of the item is complete
///   drained   to-host -> to-device   the bytes are on the host again and the buffer is free
/// The updates of the first items may be speculative: a round can undo them.
///   saved     to-host -> compute     the host has copied the weights that such an update changes
class StateRing {
 public:
  /// An item is one or more host tensors, which lie one after another in a device buffer.
  using Item = std::vector<Tensor>;

  /// The memory that makes it possible to undo an item's update exactly.
  struct Speculation {
    Item next{};   ///< the item's memory after the update; the item itself keeps the old bytes
    View weights;  ///< on the device: the weights that the update changes beside the item
    Tensor saved;  ///< on the host: a copy of these weights from before the update
  };

  /// Allocates `buffers` device buffers, each as large as the largest item. `speculative[i]`
  /// belongs to item i; later items are not speculative.
  StateRing(const DevicePtr& device, std::vector<Item> items, int buffers,
            std::vector<Speculation> speculative = {});
  /// Waits for copies under way, so that their memory can be reused.
  ~StateRing();
  StateRing(const StateRing&) = delete;
  StateRing& operator=(const StateRing&) = delete;

  /// Records copies ("fetch", "drain") and how long the compute stream waits for them ("stall").
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  std::size_t items() const { return items_.size(); }
  /// Starts copying the first items of a round; may be called before the round begins.
  void prefetch();
  /// True if the copy of the next item has been started and is not complete; does not wait.
  bool on_its_way() const;
  /// Returns the device addresses of the parts of the next item. Work given to the compute stream
  /// after this call finds them filled.
  std::vector<std::byte*> take();
  /// Call it once the update of the item taken last is queued in the compute stream. Copies the
  /// item back to the host.
  void done();
  bool finished() const { return taken_ == order_.size(); }
  /// Begins the next round. Prefetched items are kept.
  void rewind();
  /// Accepts the updates of the speculative items.
  void commit();
  /// Undoes the updates of the speculative items by appending them to this round, last item first.
  /// Each comes with its old state, and its old weights are restored first.
  void take_back();
  /// Abandons a round in which only speculative items have been taken. Waits until their old
  /// weights are restored.
  void roll_back();
  /// Drops prefetched items. Call it before the state in host memory is written to.
  void forget();
  /// Waits until all items are back in host memory.
  void synchronize();

  /// Bytes copied by the last complete round.
  const StreamedBytes& moved() const { return last_moved_; }

 private:
  struct Buffer {
    Tensor memory;
    Event arrived, updated, drained, saved;
  };
  void fetch();
  void save_weights(std::size_t item);
  void restore_weights(std::size_t item);
  void copy_to_host(const Tensor& to, const std::byte* from);
  void begin();
  bool speculative(std::size_t turn) const {
    return turn < speculative_.size();  // the other items follow them, as do items to redo
  }
  Buffer& buffer_of(std::size_t turn) { return buffers_[turn % buffers_.size()]; }
  const Buffer& buffer_of(std::size_t turn) const { return buffers_[turn % buffers_.size()]; }

  DevicePtr device_;
  Stream to_device_, to_host_;
  std::vector<Item> items_;
  std::vector<Speculation> speculative_;  ///< one for each of the first items
  std::vector<std::size_t> order_;        ///< items of this round; past items_.size(): redone
  std::vector<Buffer> buffers_;
  std::vector<std::size_t> last_turn_;   ///< item's last turn; its buffer's `drained` covers it
  std::size_t turn_ = 0;                 ///< number of the item to be taken next, over all rounds
  std::size_t fetched_ = 0, taken_ = 0;  ///< positions in order_
  StreamedBytes moved_, last_moved_;
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
