#include "apps/train/batch_upload.h"

#include <cstring>

namespace sluice {

BatchUpload::BatchUpload(const DevicePtr& device, std::int64_t rows, std::int64_t columns,
                         bool own_stream)
    : device_(device),
      stream_(own_stream ? device->copy_stream() : device->stream()),
      bytes_(static_cast<std::size_t>(rows * columns) * sizeof(std::int32_t)) {
  Runtime& runtime = device->runtime();
  for (auto& buffer : buffers_) {
    buffer.batch = {Tensor::empty(device, {rows, columns}, DType::i32),
                    Tensor::empty(device, {rows, columns}, DType::i32)};
    buffer.staged = {device, 2 * bytes_};
    buffer.arrived = runtime.make_event();
    buffer.free = runtime.make_event();
    // Work queued earlier in the compute stream may still use the memory this buffer got.
    runtime.record(buffer.free, device->stream());
  }
}

void BatchUpload::start(std::span<const std::int32_t> tokens,
                        std::span<const std::int32_t> targets) {
  Buffer& buffer = buffers_[started_++ % buffers_.size()];
  Runtime& runtime = device_->runtime();
  runtime.synchronize(buffer.arrived);  // waits for the last copy from this pinned buffer
  std::byte* const staged = buffer.staged.data();
  std::memcpy(staged, tokens.data(), bytes_);
  std::memcpy(staged + bytes_, targets.data(), bytes_);
  runtime.wait(stream_, buffer.free);
  runtime.copy_from_host(buffer.batch.tokens.view().address, staged, bytes_, stream_);
  runtime.copy_from_host(buffer.batch.targets.view().address, staged + bytes_, bytes_, stream_);
  runtime.record(buffer.arrived, stream_);
}

BatchUpload::MicroBatch BatchUpload::take() {
  const Buffer& buffer = buffers_[taken_++ % buffers_.size()];
  device_->runtime().wait(device_->stream(), buffer.arrived);
  return buffer.batch;
}

void BatchUpload::done() {
  const Buffer& buffer = buffers_[(taken_ - 1) % buffers_.size()];
  device_->runtime().record(buffer.free, device_->stream());
}

}  // namespace sluice
