#include "apps/train/batch_upload.h"

#include <cstring>

namespace sluice {

BatchUpload::BatchUpload(const DevicePtr& device, std::int64_t rows, std::int64_t columns,
                         bool own_stream)
    : device_(device),
      stream_(own_stream ? device->copy_stream() : device->stream()),
      bytes_(static_cast<std::size_t>(rows * columns) * sizeof(std::int32_t)) {
  Runtime& runtime = device->runtime();
  for (auto& place : places_) {
    place.batch = {Tensor::empty(device, {rows, columns}, DType::i32),
                   Tensor::empty(device, {rows, columns}, DType::i32)};
    place.staged = {device, 2 * bytes_};
    place.arrived = runtime.make_event();
    place.free = runtime.make_event();
    // The place may be memory that earlier work in the compute stream still uses.
    runtime.record(place.free, device->stream());
  }
}

void BatchUpload::start(std::span<const std::int32_t> tokens,
                        std::span<const std::int32_t> targets) {
  Place& place = places_[started_++ % places_.size()];
  Runtime& runtime = device_->runtime();
  runtime.synchronize(place.arrived);  // the last copy from this pinned memory
  std::byte* const staged = place.staged.data();
  std::memcpy(staged, tokens.data(), bytes_);
  std::memcpy(staged + bytes_, targets.data(), bytes_);
  runtime.wait(stream_, place.free);
  runtime.copy_from_host(place.batch.tokens.view().address, staged, bytes_, stream_);
  runtime.copy_from_host(place.batch.targets.view().address, staged + bytes_, bytes_, stream_);
  runtime.record(place.arrived, stream_);
}

BatchUpload::MicroBatch BatchUpload::take() {
  const Place& place = places_[taken_++ % places_.size()];
  device_->runtime().wait(device_->stream(), place.arrived);
  return place.batch;
}

void BatchUpload::done() {
  const Place& place = places_[(taken_ - 1) % places_.size()];
  device_->runtime().record(place.free, device_->stream());
}

}  // namespace sluice
