#include "engine/offload/host_stack.h"

#include "kernels/base/error.h"

namespace sluice {

HostStack::Ticket HostStack::put(Tensor tensor) {
  drop_given_up();
  if (depth_ == slots_.size()) slots_.push_back({.item = offload_.make_item()});
  Slot& slot = slots_[depth_];
  slot.item.data = tensor.detach();
  slot.item.where = TensorOffload::Item::Where::device;
  const auto ticket = std::make_shared<const std::size_t>(depth_++);
  slot.ticket = ticket;
  tensor = {};
  if (depth_ > 1) offload_.leave(slots_[depth_ - 2].item);
  if (depth_ > 2) offload_.let_go(slots_[depth_ - 3].item);
  return ticket;
}

Tensor HostStack::take(const Ticket& ticket) {
  drop_given_up();
  check(*ticket + 1 == depth_, "tensors were taken up in another order than they were put down");
  Slot& slot = slots_[--depth_];
  offload_.fetch(slot.item);
  Tensor tensor = offload_.take(slot.item);
  if (depth_ > 0) offload_.fetch(slots_[depth_ - 1].item);
  return tensor;
}

/// Drops tensors whose graph was released without a backward pass.
void HostStack::drop_given_up() {
  for (; depth_ > 0 && slots_[depth_ - 1].ticket.expired(); --depth_)
    offload_.drop(slots_[depth_ - 1].item);
}

}  // namespace sluice
