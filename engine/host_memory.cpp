#include "engine/host_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// The CPU runtime, except that its memory is pinned by `device` if possible.
class PinnedRuntime final : public Runtime {
 public:
  PinnedRuntime(DevicePtr device, std::size_t piece)
      : device_(std::move(device)), cpu_(make_cpu_runtime()), piece_(piece) {}

  /// Bytes that reserve(), which the DeviceContext's constructor calls, got pinned.
  std::size_t pinned() const { return pinned_; }

  Device device() const override { return cpu_->device(); }
  DeviceInfo info() const override { return cpu_->info(); }
  std::size_t capacity() const override { return cpu_->capacity(); }

  std::byte* reserve(std::size_t bytes) override {
    std::byte* start = device_->runtime().reserve_pinned(bytes);
    whole_ = start != nullptr;
    pinned_ = whole_ ? bytes : 0;
    if (whole_) return start;
    start = cpu_->reserve(bytes);
    for (std::size_t at = 0; start != nullptr && at < bytes; at += piece_) {
      const std::size_t count = std::min(piece_, bytes - at);
      if (!device_->runtime().pin(start + at, count)) continue;
      pieces_.push_back(start + at);
      pinned_ += count;
    }
    return start;
  }
  void release(std::byte* start, std::size_t bytes) override {
    if (whole_) return device_->runtime().release_pinned(start, bytes);
    for (std::byte* const piece : pieces_)
      device_->runtime().unpin(piece);
    cpu_->release(start, bytes);
  }
  void copy_from_host(std::byte* to, const std::byte* from, std::size_t bytes, Stream s) override {
    cpu_->copy_from_host(to, from, bytes, s);
  }
  void copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes, Stream s) override {
    cpu_->copy_to_host(to, from, bytes, s);
  }
  void copy_within(std::byte* to, const std::byte* from, std::size_t bytes, Stream s) override {
    cpu_->copy_within(to, from, bytes, s);
  }
  void fill_zero(std::byte* start, std::size_t bytes, Stream s) override {
    cpu_->fill_zero(start, bytes, s);
  }

 private:
  DevicePtr device_;  // outlives the memory that it pinned
  std::unique_ptr<Runtime> cpu_;
  std::size_t piece_;
  bool whole_ = true;  ///< pinned as one block
  std::size_t pinned_ = 0;
  std::vector<std::byte*> pieces_;
};

}  // namespace

HostMemory make_host_memory(const DevicePtr& device, std::size_t pinned_bytes,
                            std::size_t ordinary_bytes, std::size_t piece) {
  if (device->device().kind == DeviceKind::meta)
    return {make_meta_device(pinned_bytes), make_meta_device(ordinary_bytes)};
  HostMemory host;
  if (pinned_bytes > 0) {
    auto runtime = std::make_unique<PinnedRuntime>(device, piece);
    const PinnedRuntime& asked = *runtime;
    host.pinned = std::make_shared<DeviceContext>(std::move(runtime), pinned_bytes);
    host.pinned_bytes = asked.pinned();
    host.unpinned = host.pinned_bytes < pinned_bytes;
  }
  if (ordinary_bytes > 0) host.ordinary = make_cpu_device(ordinary_bytes);
  return host;
}

PinnedBuffer::PinnedBuffer(DevicePtr device, std::size_t bytes) {
  if (bytes == 0) return;
  std::byte* const start = device->runtime().reserve_pinned(bytes);
  pinned_ = {start, Release{std::move(device), bytes}};
  if (start == nullptr) ordinary_.resize(bytes);
}

void PinnedBuffer::Release::operator()(std::byte* start) const {
  try {
    device->runtime().release_pinned(start, bytes);
  } catch (const Error&) {  // whoever noticed first has reported the failed device
    return;
  }
}

}  // namespace sluice
