#include "tests/support/gpu/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/base/dtype.h"
#include "tests/support/skip.h"
#ifdef SLUICE_TEST_SIMT
#include "kernels/cuda/simt/device.h"
#include "tests/support/catch.h"
#endif

namespace sluice::test {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t guard_bytes = 64;
constexpr std::byte guard{0xA5};
constexpr std::byte poison{0xFF};

std::unique_ptr<Runtime> make_test_runtime([[maybe_unused]] const CudaDevice::Options& options) {
#ifdef SLUICE_TEST_SIMT
  return simt::make_runtime(
      {.seed = options.seed, .capability = options.capability, .protect = options.protect});
#else
  return make_cuda_runtime(0);
#endif
}

/// Calls `body.operator()<T>()` with the C++ type of the elements.
template <class Body>
void dispatch_any(DType dtype, Body&& body) {
  if (dtype == DType::i32) return body.template operator()<std::int32_t>();
  if (dtype == DType::i16) return body.template operator()<std::int16_t>();
  if (dtype == DType::u8) return body.template operator()<std::uint8_t>();
  if (dtype == DType::i8) return body.template operator()<std::int8_t>();
  dispatch_floating(dtype, body);
}

void fill(CudaDevice& device, std::byte* start, std::size_t bytes, std::byte value) {
  const std::vector<std::byte> host(bytes, value);
  device.runtime().copy_from_host(start, host.data(), bytes, device.stream());
}

bool holds_only(const std::byte* start, std::size_t bytes, std::byte value) {
  return std::all_of(start, start + bytes, [=](std::byte b) { return b == value; });
}

}  // namespace

CudaDevice::CudaDevice() : CudaDevice(Options{}) {}

CudaDevice::CudaDevice(const Options& options)
    : runtime_(make_test_runtime(options)), memory_(options.memory) {
  start_ = runtime_->reserve(memory_);
  mirror_ = runtime_->reserve_pinned(memory_);
  check(start_ != nullptr && mirror_ != nullptr, "there is no memory for the tests");
  const std::size_t workspace = runtime_->workspace_bytes();
  check(workspace % alignment == 0, "a workspace is a multiple of 256 bytes");
  // Poisoned: nothing may depend on what the workspace holds at first.
  fill(*this, start_, workspace, poison);
  fill(*this, start_ + workspace, alignment, guard);
  runtime_->set_workspace(stream(), start_, workspace);
  first_ = used_ = workspace + alignment;
}

CudaDevice::~CudaDevice() {
  runtime_->release_pinned(mirror_, memory_);
  runtime_->release(start_, memory_);
}

std::byte* CudaDevice::take(std::size_t bytes) {
  std::byte* const result = start_ + used_;
  used_ += (bytes + alignment - 1) / alignment * alignment;
  check(used_ <= memory_, "a test needs more device memory than it reserved");
  ++live_;
  return result;
}

void CudaDevice::give_back() {
  if (--live_ == 0) used_ = first_;
}

void CudaDevice::fetch() {
  const std::size_t from = runtime_->workspace_bytes();
  runtime_->copy_to_host(mirror_ + from, start_ + from, used_ - from, stream());
  runtime_->synchronize(stream());
}

bool CudaDevice::workspace_intact() const {
  return holds_only(mirror_ + runtime_->workspace_bytes(), alignment, guard);
}

CudaDevices::CudaDevices([[maybe_unused]] int capability) {
#ifdef SLUICE_TEST_SIMT
#ifdef __SANITIZE_ADDRESS__
  // The order of threads does not matter to it, and every switch between them is slow.
  constexpr std::uint64_t seeds = 2;
#else
  constexpr std::uint64_t seeds = 5;
#endif
  for (std::uint64_t seed = 1; seed <= seeds; ++seed)
    runs_.push_back(
        &devices_.emplace_back(CudaDevice::Options{.seed = seed, .capability = capability}));
#else
  std::string why;
  if (cuda_devices(&why) == 0) {
    skip("no CUDA device (" + why + ")");
    return;
  }
  devices_.emplace_back();
  runs_.assign(3, &devices_.front());
#endif
}

DeviceArray::DeviceArray(CudaDevice& device, DType dtype, std::int64_t count, std::int64_t offset)
    : device_(device), dtype_(dtype), count_(static_cast<std::size_t>(count)) {
  const std::size_t bytes = count_ * size_of(dtype);
  const std::size_t before = alignment + static_cast<std::size_t>(offset) * size_of(dtype);
  std::byte* const start = device.take(before + bytes + guard_bytes);
  address_ = start + before;
  std::vector<std::byte> host(before + bytes + guard_bytes, guard);
  std::fill_n(host.begin() + static_cast<std::ptrdiff_t>(before), bytes, poison);
  device.runtime().copy_from_host(start, host.data(), host.size(), device.stream());
}

DeviceArray::DeviceArray(CudaDevice& device, DType dtype, const Values& values, std::int64_t offset)
    : DeviceArray(device, dtype, static_cast<std::int64_t>(values.size()), offset) {
  set(values);
}

DeviceArray::~DeviceArray() {
  device_.give_back();
}

void DeviceArray::set(const Values& values) {
  set_bytes(bytes_of(dtype_, values));
}

void DeviceArray::set_bytes(const std::vector<std::byte>& bytes) {
  check(bytes.size() == count_ * size_of(dtype_), "a DeviceArray was set to another size");
  device_.runtime().copy_from_host(address_, bytes.data(), bytes.size(), device_.stream());
}

std::vector<std::byte> DeviceArray::bytes() const {
  const std::byte* const start = device_.fetched(address_);
  return {start, start + count_ * size_of(dtype_)};
}

Values DeviceArray::values() const {
  return values_of(dtype_, bytes());
}

bool DeviceArray::guards_intact() const {
  const std::byte* const start = device_.fetched(address_);
  return holds_only(start - guard_bytes, guard_bytes, guard) &&
         holds_only(start + count_ * size_of(dtype_), guard_bytes, guard);
}

std::vector<std::byte> bytes_of(DType dtype, const Values& values) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  dispatch_any(dtype, [&]<class T>() {
    for (std::size_t i = 0; i < values.size(); ++i) {
      T element;
      if constexpr (std::is_class_v<T>)  // bf16 or f16
        element = T(static_cast<float>(values[i]));
      else
        element = static_cast<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return bytes;
}

Values values_of(DType dtype, const std::vector<std::byte>& bytes) {
  Values values(bytes.size() / size_of(dtype));
  dispatch_any(dtype, [&]<class T>() {
    for (std::size_t i = 0; i < values.size(); ++i) {
      T element;
      std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
      if constexpr (std::is_class_v<T>)  // bf16 or f16
        values[i] = static_cast<double>(static_cast<float>(element));
      else
        values[i] = static_cast<double>(element);
    }
  });
  return values;
}

}  // namespace sluice::test
