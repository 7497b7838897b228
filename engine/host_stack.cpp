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
  } catch (const Error&) {  // a device that failed has been reported by whoever noticed first
    return;
  }
}

void HostStack::wait(Event event) {
  const Recorded span(timeline_, "stall", Timeline::Lane::compute, device_->stream());
  device_->runtime().wait(device_->stream(), event);
}

HostStack::Ticket HostStack::put(Tensor tensor) {
  drop_given_up();
  if (depth_ == places_.size()) {
    Runtime& runtime = device_->runtime();
    places_.push_back({.ready = runtime.make_event(),
                       .drained = runtime.make_event(),
                       .arrived = runtime.make_event()});
  }
  Place& place = places_[depth_];
  place.data = tensor.detach();
  place.where = Where::device;
  const auto ticket = std::make_shared<const std::size_t>(depth_++);
  place.ticket = ticket;
  tensor = {};
  if (depth_ > 1) leave(places_[depth_ - 2]);
  if (depth_ > 2) let_go(places_[depth_ - 3]);
  return ticket;
}

Tensor HostStack::take(const Ticket& ticket) {
  drop_given_up();
  check(*ticket + 1 == depth_, "tensors were taken up in another order than they were put down");
  Place& place = places_[--depth_];
  if (place.where == Where::host) fetch(place);
  // A copy still on its way out is of no use any more; it may read whatever is there by then.
  if (place.where == Where::coming) wait(place.arrived);
  if (depth_ > 0 && places_[depth_ - 1].where == Where::host) fetch(places_[depth_ - 1]);
  return std::exchange(place.data, {});
}

/// Of a graph that was released without a backward pass.
void HostStack::drop_given_up() {
  for (; depth_ > 0 && places_[depth_ - 1].ticket.expired(); --depth_) {
    Place& place = places_[depth_ - 1];
    if (place.where == Where::coming) wait(place.arrived);
    place.data = {};
  }
}

void HostStack::leave(Place& place) {
  if (place.where != Where::device) return;
  check(host_ != nullptr, "what was put down has no host memory to rest in");
  const Tensor& data = place.data;
  if (!place.resting || place.resting.shape() != data.shape() ||
      place.resting.dtype() != data.dtype()) {
    place.resting = {};
    const MemoryScope scope(*host_, MemoryUse::activations);
    place.resting = Tensor::empty(host_, data.shape(), data.dtype());
  }
  Runtime& runtime = device_->runtime();
  runtime.record(place.ready, device_->stream());
  runtime.wait(to_host_, place.ready);
  {
    const Recorded span(timeline_, "put down", Timeline::Lane::to_host, to_host_);
    // The host memory of a plan is no memory either.
    if (device_->device().kind != DeviceKind::meta)
      runtime.copy_to_host(place.resting.view().address, data.view().address, data.bytes(),
                           to_host_);
  }
  runtime.record(place.drained, to_host_);
  moved_.to_host += data.bytes();
  place.where = Where::leaving;
}

/// Gives its memory on the device back, to whatever is computed once the copy is done.
void HostStack::let_go(Place& place) {
  if (place.where != Where::leaving) return;
  wait(place.drained);
  place.data = {};
  place.where = Where::host;
}

void HostStack::fetch(Place& place) {
  const Tensor& resting = place.resting;
  {
    const MemoryScope scope(*device_, MemoryUse::activations);
    place.data = Tensor::empty(device_, resting.shape(), resting.dtype());
  }
  Runtime& runtime = device_->runtime();
  // The memory may be what earlier work in the compute stream still uses.
  runtime.record(place.ready, device_->stream());
  runtime.wait(to_device_, place.ready);
  {
    const Recorded span(timeline_, "take up", Timeline::Lane::to_device, to_device_);
    runtime.copy_from_host(place.data.view().address, resting.view().address, resting.bytes(),
                           to_device_);
  }
  runtime.record(place.arrived, to_device_);
  moved_.to_device += resting.bytes();
  place.where = Where::coming;
}

}  // namespace sluice
