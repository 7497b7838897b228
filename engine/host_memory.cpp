#include "engine/host_memory.h"

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// The CPU runtime, except that its memory is pinned by `device` if possible.
class PinnedRuntime final : public Runtime {
 public:
  explicit PinnedRuntime(DevicePtr device) : device_(std::move(device)), cpu_(make_cpu_runtime()) {}

  /// True if reserve(), which the DeviceContext's constructor calls, got pinned memory.
  bool pinned() const { return pinned_; }

  Device device() const override { return cpu_->device(); }
  DeviceInfo info() const override { return cpu_->info(); }
  std::size_t capacity() const override { return cpu_->capacity(); }

  std::byte* reserve(std::size_t bytes) override {
    std::byte* start = device_->runtime().reserve_pinned(bytes);
    pinned_ = start != nullptr;
    return pinned_ ? start : cpu_->reserve(bytes);
  }
  void release(std::byte* start, std::size_t bytes) override {
    if (pinned_)
      device_->runtime().release_pinned(start, bytes);
    else
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
  bool pinned_ = true;
};

}  // namespace

HostMemory make_host_memory(const DevicePtr& device, std::size_t pinned_bytes,
                            std::size_t ordinary_bytes) {
  if (device->device().kind == DeviceKind::meta)
    return {make_meta_device(pinned_bytes), make_meta_device(ordinary_bytes)};
  HostMemory host;
  if (pinned_bytes > 0) {
    auto runtime = std::make_unique<PinnedRuntime>(device);
    const PinnedRuntime& asked = *runtime;
    host.pinned = std::make_shared<DeviceContext>(std::move(runtime), pinned_bytes);
    host.unpinned = !asked.pinned();
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
