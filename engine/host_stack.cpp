#include "engine/host_stack.h"

#include "kernels/base/error.h"

namespace sluice {

HostStack::HostStack(DevicePtr device, DevicePtr host)
    : device_(std::move(device)),
      host_(std::move(host)),
      to_host_(device_->runtime().make_stream()),
      to_device_(device_->runtime().make_stream()) {}

HostStack::~HostStack() {
  try {
    device_->runtime().synchronize(to_host_);
    device_->runtime().synchronize(to_device_);
  } catch (const Error&) {  // whoever noticed first has reported the failed device
    return;
  }
}

void HostStack::wait(Event event) {
  const Recorded span(timeline_, "stall", Timeline::Lane::compute, device_->stream());
  device_->runtime().wait(device_->stream(), event);
}

HostStack::Ticket HostStack::put(Tensor tensor) {
  drop_given_up();
  if (depth_ == slots_.size()) {
    Runtime& runtime = device_->runtime();
    slots_.push_back({.ready = runtime.make_event(),
                      .drained = runtime.make_event(),
                      .arrived = runtime.make_event()});
  }
  Slot& slot = slots_[depth_];
  slot.data = tensor.detach();
  slot.where = Where::device;
  const auto ticket = std::make_shared<const std::size_t>(depth_++);
  slot.ticket = ticket;
  tensor = {};
  if (depth_ > 1) leave(slots_[depth_ - 2]);
  if (depth_ > 2) let_go(slots_[depth_ - 3]);
  return ticket;
}

Tensor HostStack::take(const Ticket& ticket) {
  drop_given_up();
  check(*ticket + 1 == depth_, "tensors were taken up in another order than they were put down");
  Slot& slot = slots_[--depth_];
  if (slot.where == Where::host) fetch(slot);
  // A copy to the host that is still in flight is no longer needed; it may read changed memory.
  if (slot.where == Where::coming) wait(slot.arrived);
  if (depth_ > 0 && slots_[depth_ - 1].where == Where::host) fetch(slots_[depth_ - 1]);
  return std::exchange(slot.data, {});
}

/// Drops tensors whose graph was released without a backward pass.
void HostStack::drop_given_up() {
  for (; depth_ > 0 && slots_[depth_ - 1].ticket.expired(); --depth_) {
    Slot& slot = slots_[depth_ - 1];
    if (slot.where == Where::coming) wait(slot.arrived);
    slot.data = {};
  }
}

void HostStack::leave(Slot& slot) {
  if (slot.where != Where::device) return;
  check(host_ != nullptr, "what was put down has no host memory to rest in");
  const Tensor& data = slot.data;
  if (!slot.resting || slot.resting.shape() != data.shape() ||
      slot.resting.dtype() != data.dtype()) {
    slot.resting = {};
    const MemoryScope scope(*host_, MemoryUse::activations);
    slot.resting = Tensor::empty(host_, data.shape(), data.dtype());
  }
  Runtime& runtime = device_->runtime();
  runtime.record(slot.ready, device_->stream());
  runtime.wait(to_host_, slot.ready);
  {
    const Recorded span(timeline_, "put down", Timeline::Lane::to_host, to_host_);
    // Host memory of a `meta` device is only counted, so there is nothing to copy to.
    if (device_->device().kind != DeviceKind::meta)
      runtime.copy_to_host(slot.resting.view().address, data.view().address, data.bytes(),
                           to_host_);
  }
  runtime.record(slot.drained, to_host_);
  moved_.to_host += data.bytes();
  slot.where = Where::leaving;
}

/// Releases the device memory for reuse by whatever is computed once the copy is done.
void HostStack::let_go(Slot& slot) {
  if (slot.where != Where::leaving) return;
  wait(slot.drained);
  slot.data = {};
  slot.where = Where::host;
}

void HostStack::fetch(Slot& slot) {
  const Tensor& resting = slot.resting;
  {
    const MemoryScope scope(*device_, MemoryUse::activations);
    slot.data = Tensor::empty(device_, resting.shape(), resting.dtype());
  }
  Runtime& runtime = device_->runtime();
  // Earlier work on the compute stream may still use the memory.
  runtime.record(slot.ready, device_->stream());
  runtime.wait(to_device_, slot.ready);
  {
    const Recorded span(timeline_, "take up", Timeline::Lane::to_device, to_device_);
    runtime.copy_from_host(slot.data.view().address, resting.view().address, resting.bytes(),
                           to_device_);
  }
  runtime.record(slot.arrived, to_device_);
  moved_.to_device += resting.bytes();
  slot.where = Where::coming;
}

}  // namespace sluice
