#include "engine/device_context.h"

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace sluice {

DeviceContext::DeviceContext(std::unique_ptr<Runtime> runtime)
    : runtime_(std::move(runtime)), arena_(std::make_unique<Arena>(0)) {}

DeviceContext::DeviceContext(std::unique_ptr<Runtime> runtime, std::size_t budget)
    : DeviceContext(std::move(runtime)) {
  reserve(budget);
}

void DeviceContext::reserve(std::size_t budget) {
  check(start_ == nullptr, "a device's memory is reserved once");
  reserved_ = budget != 0 ? budget : runtime_->capacity();
  start_ = runtime_->reserve(reserved_);
  // If addresses are limited (ulimit -v), take what there is, unless a budget was requested.
  while (start_ == nullptr && budget == 0 && reserved_ > (std::size_t{1} << 26)) {
    reserved_ /= 2;
    start_ = runtime_->reserve(reserved_);
  }
  if (start_ == nullptr)
    fail(fmt::format("the system refused to reserve {} bytes of {} memory; lower the budget",
                     reserved_, name_of(device().kind)));
  arena_ = std::make_unique<Arena>(reserved_);
  if (const std::size_t bytes = runtime_->workspace_bytes(); bytes > 0) {
    const MemoryScope scope(*this, MemoryUse::workspace);
    runtime_->set_workspace(stream(), allocate(bytes), bytes);
  }
}

Stream DeviceContext::copy_stream() {
  if (!copy_stream_) copy_stream_ = runtime_->make_stream();
  return *copy_stream_;
}

DeviceContext::~DeviceContext() {
  if (start_ != nullptr) runtime_->release(start_, reserved_);
}

DevicePtr make_cpu_device(std::size_t budget) {
  return std::make_shared<DeviceContext>(make_cpu_runtime(), budget);
}

DevicePtr make_cuda_device(int index, std::size_t budget) {
  return std::make_shared<DeviceContext>(make_cuda_runtime(index), budget);
}

DevicePtr make_meta_device(std::size_t budget, std::size_t workspace_bytes) {
  return std::make_shared<DeviceContext>(make_meta_runtime(workspace_bytes), budget);
}

}  // namespace sluice
