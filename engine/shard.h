#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/tensor.h"

namespace sluice {

/// Describes which elements of a tensor a rank holds: those whose index in one dimension lies in
/// certain ranges, in the tensor's order. By default all elements.
class Shard {
 public:
  struct Range {
    std::int64_t begin = 0, end = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };

  Shard() = default;
  /// The ranges in `kept` must be ascending and disjoint.
  Shard(Shape whole, int dimension, std::vector<Range> kept);

  /// True if other ranks have other elements.
  bool divided() const { return !kept_.empty(); }
  /// Shape of the whole tensor; empty if the tensor is not divided.
  const Shape& whole() const { return whole_; }
  int dimension() const { return dimension_; }
  const std::vector<Range>& kept() const { return kept_; }
  /// Shape of the elements on this rank.
  Shape shape() const;

  /// Returns the number of elements of the shard that come before element `index` of the whole.
  std::int64_t place(std::int64_t index) const;
  /// Returns the index in the whole of element `place` of the shard.
  std::int64_t index(std::int64_t place) const { return divided() ? run_at(place).first : place; }

  /// Calls body(place in the shard, index in the whole, count) for ascending runs of elements that
  /// are contiguous in both and together make up the shard's elements [first, first + count).
  template <class Body>
  void for_each_run(std::int64_t first, std::int64_t count, Body&& body) const {
    if (!divided()) return body(first, first, count);
    for (std::int64_t at = first; at < first + count;) {
      const auto [index, together] = run_at(at);
      const std::int64_t length = std::min(together, first + count - at);
      body(at, index, length);
      at += length;
    }
  }

  /// Extracts the shard's part of `elements`: the whole tensor's elements (`width` bytes each) from
  /// index `first` on. Moves that part to the front of `elements` and returns it.
  std::span<std::byte> pick(std::int64_t first, std::span<std::byte> elements,
                            std::size_t width) const;
  /// The reverse: copies `mine`, the shard's elements from `place` on, to their places among
  /// `elements`, those of the whole tensor from index `first` on.
  void put(std::int64_t place, std::span<const std::byte> mine, std::size_t width,
           std::int64_t first, std::span<std::byte> elements) const;

 private:
  std::pair<std::int64_t, std::int64_t> run_at(std::int64_t place) const;

  Shape whole_;
  int dimension_ = 0;
  std::vector<Range> kept_;
  std::int64_t inner_ = 1;   ///< elements per index of the divided dimension
  std::int64_t period_ = 0;  ///< elements of all indices; `kept_period_`: those of the kept indices
  std::int64_t kept_period_ = 0;
};

/// Returns the range of `count` rows or columns that `rank` gets; the first ranks get one more if
/// it is uneven.
Shard::Range part_of(std::int64_t count, int rank, int ranks);

}  // namespace sluice
