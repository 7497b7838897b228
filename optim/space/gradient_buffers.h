#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/tensor.h"
#include "optim/space/space_layout.h"

namespace sluice {

/// The memory for the gradients of a parameter space: one buffer for those summed in f32 (f64), one
/// for those summed in bf16. Positions are gradient offsets of the SpaceLayout.
///
/// Usually each buffer has all gradients in the order of the layout. Sharded gradients (ZeRO-2)
/// take less memory: the sections share two places, in which backward writes the gradients of one
/// section after the other, and the buffer keeps only the sums that this rank needs for its update.
/// A section with an embedding table has its own memory, because the gradient of a tied table is
/// complete only at the end of backward. So has one without large matrices, such as the final norm,
/// which would cost a message in each pass and save nothing.
class GradientBuffers {
 public:
  static constexpr std::size_t places = 2;

  /// `wide` and `narrow` are the dtypes of the sums. `kept`: the ranges of the space that this rank
  /// updates, ascending, if gradients are sharded; none if they are not.
  GradientBuffers(const SpaceLayout& layout, const DevicePtr& device, DType wide, DType narrow,
                  const std::optional<std::vector<SpaceRange>>& kept);

  DType dtype(bool narrow) const { return dtypes_[narrow ? 1 : 0]; }
  /// Memory to which backward writes the gradients [begin, end), which are of one section if
  /// gradients are sharded. They are there until another section takes the place.
  Tensor written(bool narrow, std::int64_t begin, std::int64_t end) const;
  /// The gradients [begin, end) for the update. They must be ones that this rank keeps.
  Tensor kept(bool narrow, std::int64_t begin, std::int64_t end) const;
  /// The place of a section; none if its gradients have memory of their own.
  std::optional<std::size_t> place_of(int section) const;

 private:
  /// Maps gradient offsets to elements of a buffer.
  class Map {
   public:
    void add(std::int64_t begin, std::int64_t end, std::int64_t at);
    /// The same, as one piece with what was added before if both lie next to each other.
    void append(std::int64_t begin, std::int64_t end, std::int64_t at);
    std::int64_t at(std::int64_t begin, std::int64_t end) const;

   private:
    struct Piece {
      std::int64_t begin, end, at;
    };
    std::vector<Piece> pieces_;  ///< ascending
  };

  void shard(const SpaceLayout& layout, const std::vector<SpaceRange>& kept,
             std::array<std::int64_t, 2>& sizes);
  Tensor slice(const Map& map, bool narrow, std::int64_t begin, std::int64_t end) const;

  // Element 0 belongs to the wide gradients, element 1 to the narrow ones.
  std::array<DType, 2> dtypes_;
  std::array<Tensor, 2> buffers_;
  std::array<Map, 2> written_, kept_;
  std::vector<std::optional<std::size_t>> place_of_section_;
};

}  // namespace sluice
