#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "bench/kernels/case.h"
#include "engine/device_context.h"

namespace sluice::bench {

/// A block of device memory; the destructor returns it.
class Block {
 public:
  Block(DevicePtr device, std::size_t bytes)
      : device_(std::move(device)), start_(device_->allocate(bytes)) {}
  ~Block() { device_->release(start_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  std::byte* start() const { return start_; }

 private:
  DevicePtr device_;
  std::byte* start_;
};

/// The operands of a problem on a device. The constructor fills all of them in every copy, as their
/// Filling says. With several copies, repetitions can use memory that no cache holds.
class Buffers {
 public:
  Buffers(const DevicePtr& device, const Problem& problem, int copies);

  /// Returns the bytes that one copy needs.
  static std::size_t bytes_for(const Problem& problem);

  int copies() const { return static_cast<int>(operands_.size()); }
  const Operands& operands(int copy) const { return operands_[static_cast<std::size_t>(copy)]; }

  /// Overwrites operand `index` of the first copy with NaN, or with -1 if it holds integers.
  void poison(std::size_t index);
  /// Operand `index` of the first copy as double, without the gaps between rows.
  std::vector<double> download(std::size_t index) const;
  void upload(std::size_t index, std::span<const double> values);

 private:
  /// Fills the operand with repetitions of `pattern`.
  void repeat(std::size_t index, std::span<const std::byte> pattern);

  DevicePtr device_;
  std::vector<Operand> layout_;
  Block block_;
  std::vector<Operands> operands_;
};

}  // namespace sluice::bench
