#include "apps/data/batch_upload.h"

#include <cstring>

namespace sluice {

BatchUpload::BatchUpload(const DevicePtr& device, std::int64_t rows, std::int64_t columns,
                         std::int64_t each_step, bool own_stream)
    : device_(device),
      stream_(own_stream ? device->copy_stream() : device->stream()),
      bytes_(static_cast<std::size_t>(rows * columns) * sizeof(std::int32_t)),
      staged_(static_cast<std::size_t>(each_step)) {
  Runtime& runtime = device->runtime();
  for (auto& buffer : buffers_) {
    buffer.batch = {Tensor::empty(device, {rows, columns}, DType::i32),
                    Tensor::empty(device, {rows, columns}, DType::i32)};
    buffer.free = runtime.make_event();
    // Work queued earlier in the compute stream may still use the memory this buffer got.
    runtime.record(buffer.free, device->stream());
  }
  for (Staged& staged : staged_)
    staged = {{device, 2 * bytes_}, runtime.make_event()};
}

void BatchUpload::start(std::span<const std::int32_t> tokens,
                        std::span<const std::int32_t> targets) {
  const Buffer& buffer = buffers_[started_ % buffers_.size()];
  Staged& from = staged_[started_++ % staged_.size()];
  Runtime& runtime = device_->runtime();
  runtime.synchronize(from.arrived);  // waits for the last copy from this pinned buffer
  std::byte* const staged = from.ids.data();
  std::memcpy(staged, tokens.data(), bytes_);
  std::memcpy(staged + bytes_, targets.data(), bytes_);
  runtime.wait(stream_, buffer.free);
  runtime.copy_from_host(buffer.batch.tokens.view().address, staged, bytes_, stream_);
  runtime.copy_from_host(buffer.batch.targets.view().address, staged + bytes_, bytes_, stream_);
  runtime.record(from.arrived, stream_);
}

BatchUpload::MicroBatch BatchUpload::take() {
  const std::size_t taken = taken_++;
  device_->runtime().wait(device_->stream(), staged_[taken % staged_.size()].arrived);
  return buffers_[taken % buffers_.size()].batch;
}

void BatchUpload::done() {
  const Buffer& buffer = buffers_[(taken_ - 1) % buffers_.size()];
  device_->runtime().record(buffer.free, device_->stream());
}

}  // namespace sluice
