#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "bench/kernels/case.h"
#include "engine/device_context.h"

namespace sluice::bench {

/// Memory of a device, given back with its owner.
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

/// The operands of a problem on a device: all hold numbers when it is made, as their Filling says,
/// in each of the copies. Copies let repetitions find memory that no cache holds.
class Buffers {
 public:
  Buffers(const DevicePtr& device, const Problem& problem, int copies);

  /// Bytes that one copy takes.
  static std::size_t bytes_for(const Problem& problem);

  int copies() const { return static_cast<int>(operands_.size()); }
  const Operands& operands(int copy) const { return operands_[static_cast<std::size_t>(copy)]; }

  /// Overwrites operand `index` of the first copy with NaN, -1 where it holds integers.
  void poison(std::size_t index);
  /// Operand `index` of the first copy, widened; what lies between rows is left out.
  std::vector<double> download(std::size_t index) const;
  void upload(std::size_t index, std::span<const double> values);

 private:
  /// Copies `pattern` to the operand again and again until it is full.
  void repeat(std::size_t index, std::span<const std::byte> pattern);

  DevicePtr device_;
  std::vector<Operand> layout_;
  Block block_;
  std::vector<Operands> operands_;
};

}  // namespace sluice::bench
