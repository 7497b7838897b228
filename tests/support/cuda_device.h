#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <vector>

#include "kernels/base/runtime.h"
#include "kernels/base/view.h"
#include "tests/support/gradcheck.h"

// A CUDA device for tests of kernels: the GPU, or in a build for the SIMT target the host as one.

namespace sluice::test {

/// Its memory can be taken anew when all that was taken has been given back.
class CudaDevice {
 public:
  struct Options {
    std::uint64_t seed = 1;  ///< of the order of threads and streams; the SIMT target only
    int capability = 90;     ///< likewise; a GPU has its own
    bool protect = true;     ///< likewise; the host may not touch device memory
    std::size_t memory = std::size_t{256} << 20;
  };

  CudaDevice();
  explicit CudaDevice(const Options& options);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  Runtime& runtime() { return *runtime_; }
  Stream stream() const { return runtime_->compute_stream(); }
  int capability() const { return runtime_->info().capability; }

  /// 256-byte aligned.
  std::byte* take(std::size_t bytes);
  void give_back();

  /// Waits for the stream and copies all that has been taken to the host, in one copy: on the SIMT
  /// target each wait changes the rights of the memory, which takes longer than most tests.
  void fetch();
  /// Where the bytes at `address` lie on the host. As they were fetched last.
  const std::byte* fetched(const std::byte* address) const { return mirror_ + (address - start_); }
  /// False where a kernel had written past the end of its workspace.
  bool workspace_intact() const;

 private:
  std::unique_ptr<Runtime> runtime_;
  std::byte* start_ = nullptr;
  std::byte* mirror_ = nullptr;  ///< pinned
  std::size_t memory_, first_ = 0, used_ = 0;
  int live_ = 0;
};

/// The devices, or the runs on one, that a result must not depend on: five seeds of the SIMT
/// target, or a GPU three times.
class CudaDevices {
 public:
  /// Prints why where there is no device.
  explicit CudaDevices(int capability = 90);

  explicit operator bool() const { return !runs_.empty(); }
  const std::vector<CudaDevice*>& runs() const { return runs_; }
  /// Of the devices: on a GPU not what was asked for.
  int capability() const { return runs_.front()->capability(); }

 private:
  std::deque<CudaDevice> devices_;
  std::vector<CudaDevice*> runs_;
};

/// Elements in device memory, with bytes around them that nobody may write. What is read here is
/// what the device fetched last.
class DeviceArray {
 public:
  /// All NaN. The first element lies `offset` elements past a 256-byte boundary.
  DeviceArray(CudaDevice& device, DType dtype, std::int64_t count, std::int64_t offset = 0);
  /// `values` may be those of integer types too.
  DeviceArray(CudaDevice& device, DType dtype, const Values& values, std::int64_t offset = 0);
  ~DeviceArray();
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void set(const Values& values);
  void set_bytes(const std::vector<std::byte>& bytes);
  Values values() const;
  std::vector<std::byte> bytes() const;
  bool guards_intact() const;

  View view(std::initializer_list<std::int64_t> shape) const { return {address_, dtype_, shape}; }
  /// All elements in one dimension.
  View flat() const { return view({static_cast<std::int64_t>(count_)}); }

 private:
  CudaDevice& device_;
  DType dtype_;
  std::size_t count_;
  std::byte* address_;
};

/// The bytes of `values` in `dtype`, integers included, and back.
std::vector<std::byte> bytes_of(DType dtype, const Values& values);
Values values_of(DType dtype, const std::vector<std::byte>& bytes);

}  // namespace sluice::test
