#include "optim/offload/cpu_updater.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"

namespace sluice {
namespace {

std::size_t bytes_of(const View& view) {
  return static_cast<std::size_t>(view.size()) * size_of(view.dtype);
}
std::size_t padded(const View& view) {
  return (bytes_of(view) + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
}

/// Returns a view of the same array at another address.
View moved_to(std::byte* address, View view) {
  view.address = address;
  return view;
}

}  // namespace

CpuUpdater::CpuUpdater(const DevicePtr& device, const DevicePtr& host, std::vector<Item> items,
                       int buffers)
    : device_(device), items_(std::move(items)) {
  check(buffers > 0 && !items_.empty(), "a CPU updater needs a buffer and an item");
  Runtime& runtime = device->runtime();
  to_device_ = runtime.make_stream();
  to_host_ = runtime.make_stream();
  ready_ = runtime.make_event();
  std::size_t largest = 0;
  for (const Item& item : items_)
    largest = std::max(largest, padded(item.gradient) + padded(item.weights));
  const MemoryScope scope(*host, MemoryUse::staging);
  scale_memory_ = Tensor::zeros(host, {1}, DType::f64);  // large enough for f32, too
  for (int i = 0; i < buffers; ++i)
    buffers_.push_back(
        {.memory = Tensor::empty(host, {static_cast<std::int64_t>(largest)}, DType::u8),
         .arrived = runtime.make_event(),
         .delivered = runtime.make_event()});
}

CpuUpdater::~CpuUpdater() {
  try {
    synchronize();
  } catch (const Error&) {  // the code that first saw the device fail has reported it
    return;
  }
}

CpuUpdater::Staged CpuUpdater::views_of(const Item& item, const Buffer& buffer) const {
  std::byte* const start = buffer.memory.view().address;
  return {.gradient = moved_to(start, item.gradient),
          .weights = moved_to(start + padded(item.gradient), item.weights),
          .scale = scale_};
}

/// Does nothing on `meta` (a plan), which has no host memory to write to.
void CpuUpdater::copy_to_host(const View& to, const View& from) {
  if (device_->device().kind != DeviceKind::meta)
    device_->runtime().copy_to_host(to.address, from.address, bytes_of(from), to_host_);
}

void CpuUpdater::round(const View& scale) {
  Runtime& runtime = device_->runtime();
  fetched_ = taken_ = 0;
  moved_ = {};
  runtime.record(ready_, device_->stream());
  runtime.wait(to_host_, ready_);
  scale_ = scale ? moved_to(scale_memory_.view().address, scale) : View{};
  if (scale) copy_to_host(scale_, scale);
  while (fetched_ < std::min(items_.size(), buffers_.size()))
    fetch();
}

void CpuUpdater::fetch() {
  Runtime& runtime = device_->runtime();
  const Item& item = items_[fetched_];
  Buffer& buffer = buffer_of(fetched_);
  const Staged at = views_of(item, buffer);
  // The weights in this buffer may still be on their way to the device.
  runtime.wait(to_host_, buffer.delivered);
  const Recorded span(timeline_, "gradients", Timeline::Lane::to_host, to_host_);
  copy_to_host(at.gradient, item.gradient);
  moved_.to_host += bytes_of(item.gradient);
  if (item.reads_weights) {
    copy_to_host(at.weights, item.weights);
    moved_.to_host += bytes_of(item.weights);
  }
  runtime.record(buffer.arrived, to_host_);
  ++fetched_;
}

CpuUpdater::Staged CpuUpdater::take() {
  check(taken_ < items_.size(), "a round of updates has no more items");
  Buffer& buffer = buffer_of(taken_);
  device_->runtime().synchronize(buffer.arrived);
  return views_of(items_[taken_], buffer);
}

/// May be called only once an item has arrived: the scale arrives with it.
bool CpuUpdater::changes() const {
  if (!scale_ || device_->device().kind == DeviceKind::meta) return true;
  return std::isfinite(scale_.dtype == DType::f64 ? *scale_.data<double>()
                                                  : static_cast<double>(*scale_.data<float>()));
}

void CpuUpdater::done() {
  Runtime& runtime = device_->runtime();
  const Item& item = items_[taken_];
  Buffer& buffer = buffer_of(taken_);
  if (changes()) {
    const Recorded span(timeline_, "weights", Timeline::Lane::to_device, to_device_);
    runtime.copy_from_host(item.weights.address, views_of(item, buffer).weights.address,
                           bytes_of(item.weights), to_device_);
    moved_.to_device += bytes_of(item.weights);
  }
  runtime.record(buffer.delivered, to_device_);
  if (++taken_ == items_.size()) last_moved_ = std::exchange(moved_, {});
  if (fetched_ < items_.size()) fetch();
}

void CpuUpdater::deliver(std::size_t item) {
  check(item < taken_, "an item was asked for before it was updated");
  // Copies to the device follow each other, so the copy of a later item in its buffer covers it.
  device_->runtime().wait(device_->stream(), buffer_of(item).delivered);
}

void CpuUpdater::synchronize() {
  device_->runtime().synchronize(to_device_);
  device_->runtime().synchronize(to_host_);
}

}  // namespace sluice
