#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/tensor.h"
#include "optim/space/element_map.h"
#include "optim/space/flat_buffer.h"
#include "optim/space/space_layout.h"

namespace sluice {

/// The memory for the gradients of a parameter space: one buffer for those summed in f32 (f64), one
/// for those summed in bf16. Positions are gradient offsets of the SpaceLayout.
///
/// Usually each buffer has all gradients in the order of the layout, or rests in part in host
/// memory (FlatBuffer). Sharded gradients (ZeRO-2) take less memory: the sections share two places,
/// in which backward writes the gradients of one section after the other, and the buffer keeps only
/// the sums that this rank needs for its update. A section with an embedding table has its own
/// memory, because the gradient of a tied table is complete only at the end of backward. So has one
/// without large matrices, such as the final norm, which would cost a message in each pass and save
/// nothing.
class GradientBuffers {
 public:
  static constexpr std::size_t places = 2;

  /// `wide` and `narrow` are the dtypes of the sums. `kept`: the ranges of the space that this rank
  /// updates, ascending, if gradients are sharded; none if they are not. `host`: memory for those
  /// that rest there; may be null if none do.
  GradientBuffers(const SpaceLayout& layout, const DevicePtr& device, const DevicePtr& host,
                  DType wide, DType narrow, const std::optional<std::vector<SpaceRange>>& kept);

  DType dtype(bool narrow) const { return dtypes_[narrow ? 1 : 0]; }
  /// Memory to which backward writes the gradients [begin, end), which are of one section if
  /// gradients are sharded. They are there until another section takes the place.
  Tensor written(bool narrow, std::int64_t begin, std::int64_t end) const;
  /// The same memory, without the gradients that rest in host memory. May be empty.
  Tensor staying(bool narrow, std::int64_t begin, std::int64_t end) const;
  /// The gradients [begin, end) for the update. They must be ones that this rank keeps.
  Tensor kept(bool narrow, std::int64_t begin, std::int64_t end) const;
  /// The place of a section of sharded gradients; none if they have memory of their own.
  std::optional<std::size_t> place_of(int section) const;
  /// The gradients of a section that rest in host memory; null if none do.
  const FlatBuffer::Visitor* visitor(int section) const;

 private:
  void shard(const SpaceLayout& layout, const std::vector<SpaceRange>& kept,
             std::array<std::int64_t, 2>& sizes);
  Tensor slice(const ElementMap& map, bool narrow, std::int64_t begin, std::int64_t end) const;

  // Element 0 belongs to the wide gradients, element 1 to the narrow ones.
  std::array<DType, 2> dtypes_;
  std::optional<std::array<FlatBuffer, 2>> whole_;  ///< none if gradients are sharded
  std::array<Tensor, 2> buffers_;                   ///< of sharded gradients
  std::array<ElementMap, 2> written_, kept_;
  std::vector<std::optional<std::size_t>> place_of_section_;
};

}  // namespace sluice
