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

// A CUDA device for kernel tests: the GPU, or the emulated one in a build for the SIMT target.

namespace sluice::test {

/// The device's memory can be taken again once everything taken has been given back.
class CudaDevice {
 public:
  struct Options {
    std::uint64_t seed = 1;  ///< of the order of threads and streams; SIMT target only
    int capability = 90;     ///< SIMT target only; a GPU has its own
    bool protect = true;     ///< SIMT target only; the host may not touch device memory
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

  /// Returns memory aligned to 256 bytes.
  std::byte* take(std::size_t bytes);
  void give_back();

  /// Waits for the stream and copies all memory taken to the host in one copy: on the SIMT target
  /// each wait changes the memory's access rights, which takes longer than most tests.
  void fetch();
  /// Returns the host copy of the bytes at `address`, as of the last fetch().
  const std::byte* fetched(const std::byte* address) const { return mirror_ + (address - start_); }
  /// Returns false if a kernel has written past the end of its workspace.
  bool workspace_intact() const;

 private:
  std::unique_ptr<Runtime> runtime_;
  std::byte* start_ = nullptr;
  std::byte* mirror_ = nullptr;  ///< pinned host memory
  std::size_t memory_, first_ = 0, used_ = 0;
  int live_ = 0;
};

/// The devices, or runs on one device, that a result must not depend on: five seeds of the SIMT
/// target, or three times a GPU.
class CudaDevices {
 public:
  /// Prints why if there is no device.
  explicit CudaDevices(int capability = 90);

  explicit operator bool() const { return !runs_.empty(); }
  const std::vector<CudaDevice*>& runs() const { return runs_; }
  /// Returns the devices' capability; a GPU's own may differ from the one asked for.
  int capability() const { return runs_.front()->capability(); }

 private:
  std::deque<CudaDevice> devices_;
  std::vector<CudaDevice*> runs_;
};

/// Elements in device memory, surrounded by bytes that nobody may write. Reads return what was last
/// fetched from the device.
class DeviceArray {
 public:
  /// Fills with NaN. The first element is `offset` elements past a 256-byte boundary.
  DeviceArray(CudaDevice& device, DType dtype, std::int64_t count, std::int64_t offset = 0);
  /// `values` may be for integer types, too.
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
  /// Returns all elements in one dimension.
  View flat() const { return view({static_cast<std::int64_t>(count_)}); }

 private:
  CudaDevice& device_;
  DType dtype_;
  std::size_t count_;
  std::byte* address_;
};

/// Converts `values` to bytes of `dtype`, integers included; the next one converts back.
std::vector<std::byte> bytes_of(DType dtype, const Values& values);
Values values_of(DType dtype, const std::vector<std::byte>& bytes);

}  // namespace sluice::test
