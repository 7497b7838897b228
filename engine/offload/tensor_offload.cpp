#include "engine/offload/tensor_offload.h"

#include "kernels/base/error.h"

namespace sluice {

using Where = TensorOffload::Item::Where;

TensorOffload::TensorOffload(DevicePtr device, DevicePtr host)
    : device_(std::move(device)),
      host_(std::move(host)),
      to_host_(device_->runtime().make_stream()),
      to_device_(device_->runtime().make_stream()) {}

TensorOffload::~TensorOffload() {
  try {
    device_->runtime().synchronize(to_host_);
    device_->runtime().synchronize(to_device_);
  } catch (const Error&) {  // whoever noticed first has reported the failed device
    return;
  }
}

TensorOffload::Item TensorOffload::make_item() {
  Runtime& runtime = device_->runtime();
  return {.ready = runtime.make_event(),
          .drained = runtime.make_event(),
          .arrived = runtime.make_event()};
}

void TensorOffload::wait(Event event) {
  const Recorded span(timeline_, "stall", Timeline::Lane::compute, device_->stream());
  device_->runtime().wait(device_->stream(), event);
}

void TensorOffload::leave(Item& item) {
  if (item.where != Where::device) return;
  check(host_ != nullptr, "what was put down has no host memory to rest in");
  const Tensor& data = item.data;
  if (!item.resting || item.resting.shape() != data.shape() ||
      item.resting.dtype() != data.dtype()) {
    item.resting = {};
    const MemoryScope scope(*host_, MemoryUse::activations);
    item.resting = Tensor::empty(host_, data.shape(), data.dtype());
  }
  Runtime& runtime = device_->runtime();
  runtime.record(item.ready, device_->stream());
  runtime.wait(to_host_, item.ready);
  {
    const Recorded span(timeline_, "put down", Timeline::Lane::to_host, to_host_);
    // Host memory of a `meta` device is only counted, so there is nothing to copy to.
    if (device_->device().kind != DeviceKind::meta)
      runtime.copy_to_host(item.resting.view().address, data.view().address, data.bytes(),
                           to_host_);
  }
  runtime.record(item.drained, to_host_);
  moved_.to_host += data.bytes();
  item.where = Where::leaving;
}

void TensorOffload::let_go(Item& item) {
  if (item.where != Where::leaving) return;
  wait(item.drained);
  item.data = {};
  item.where = Where::host;
}

void TensorOffload::fetch(Item& item) {
  if (item.where != Where::host) return;
  const Tensor& resting = item.resting;
  {
    const MemoryScope scope(*device_, MemoryUse::activations);
    item.data = Tensor::empty(device_, resting.shape(), resting.dtype());
  }
  Runtime& runtime = device_->runtime();
  // Earlier work on the compute stream may still use the memory.
  runtime.record(item.ready, device_->stream());
  runtime.wait(to_device_, item.ready);
  {
    const Recorded span(timeline_, "take up", Timeline::Lane::to_device, to_device_);
    runtime.copy_from_host(item.data.view().address, resting.view().address, resting.bytes(),
                           to_device_);
  }
  runtime.record(item.arrived, to_device_);
  moved_.to_device += resting.bytes();
  item.where = Where::coming;
}

Tensor TensorOffload::take(Item& item) {
  check(item.where != Where::host, "a tensor was taken up before it was fetched");
  Tensor data = item.data;
  drop(item);
  return data;
}

void TensorOffload::drop(Item& item) {
  // A copy to the host that is still in flight is no longer needed; it may read changed memory.
  if (item.where == Where::coming) wait(item.arrived);
  item.data = {};
  item.where = Where::device;
}

}  // namespace sluice
