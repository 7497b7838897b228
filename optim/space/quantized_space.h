#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/parameter.h"
#include "optim/space/space_layout.h"

namespace sluice {

/// Holds matrices that are not trained as 8-bit integers, and hands each Parameter::quantized its
/// part.
class QuantizedSpace {
 public:
  using Slot = SpaceLayout::Slot;

  /// All is zero. Shards begin at multiples of quantized_block columns, so that ranks round to the
  /// values of the whole matrix.
  QuantizedSpace(const std::vector<Parameter>& parameters, const DevicePtr& device);

  const std::vector<Slot>& slots() const { return layout_.slots; }
  /// The largest magnitude that 127 times a scale in f16 can stand for.
  static constexpr double largest_value() { return 127 * 65504.0; }
  /// Rounds and writes whole rows of the whole matrix, of which this rank keeps those of its shard:
  /// f32 values from element `first` of the slot on. Uses `rows` as scratch memory. Returns false,
  /// and writes nothing, if a value is above largest_value().
  [[nodiscard]] bool write_rows(const Slot& slot, std::int64_t first, std::span<std::byte> rows);
  /// Rounds the values with which a new model begins (initial_values()).
  void initialize(std::uint64_t seed);

 private:
  /// Writes f32 values of whole rows of this rank's shard, from `row` on.
  bool write(const Slot& slot, std::int64_t row, std::span<std::byte> values);

  SpaceLayout layout_;
};

}  // namespace sluice
