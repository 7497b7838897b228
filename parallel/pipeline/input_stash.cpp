#include "parallel/pipeline/input_stash.h"

#include <utility>

namespace sluice {

InputStash::Ticket InputStash::put(Tensor input) {
  if (free_.empty()) {
    free_.push_back(slots_.size());
    slots_.push_back({.item = offload_.make_item()});
  }
  const Ticket ticket = free_.back();
  free_.pop_back();
  Slot& slot = slots_[ticket];
  slot.item.data = input.detach();
  input = {};
  const std::size_t size = slot.item.data.bytes();
  if (bytes_ + size <= max_bytes_) {
    bytes_ += slot.stays = size;
    return ticket;
  }
  offload_.leave(slot.item);
  leaving_.push_back(ticket);
  // One copy is under way while the next micro-batch is computed.
  for (; leaving_.size() > 1; leaving_.pop_front())
    offload_.let_go(slots_[leaving_.front()].item);
  return ticket;
}

Tensor InputStash::take(Ticket ticket) {
  Slot& slot = slots_[ticket];
  std::erase(leaving_, ticket);
  offload_.fetch(slot.item);
  Tensor input = offload_.take(slot.item);
  slot.item.resting = {};
  bytes_ -= std::exchange(slot.stays, 0);
  free_.push_back(ticket);
  return input;
}

}  // namespace sluice
