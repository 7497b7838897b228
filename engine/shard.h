#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/tensor.h"

namespace sluice {

/// Which elements of a tensor one of several ranks has: those whose index in one dimension lies in
/// some ranges, in the tensor's order. By default all of them. Pure arithmetic.
class Shard {
 public:
  struct Range {
    std::int64_t begin = 0, end = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };

  Shard() = default;
  /// `kept`: ascending and apart.
  Shard(Shape whole, int dimension, std::vector<Range> kept);

  /// Whether other ranks have other elements.
  bool divided() const { return !kept_.empty(); }
  /// Of the whole tensor; none where it is not divided.
  const Shape& whole() const { return whole_; }
  int dimension() const { return dimension_; }
  const std::vector<Range>& kept() const { return kept_; }
  /// Of the elements here.
  Shape shape() const;

  /// How many elements of the shard come before element `index` of the whole.
  std::int64_t place(std::int64_t index) const;

  /// Calls body(place in the shard, index in the whole, count) for stretches that lie together in
  /// both and make up the shard's elements [first, first + count), ascending.
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

  /// What the shard has of some bytes of the whole tensor, elements of `width` bytes from `first`
  /// on: they are moved to the front.
  std::span<std::byte> pick(std::int64_t first, std::span<std::byte> elements,
                            std::size_t width) const;
  /// The reverse: puts `mine`, the shard's elements from place(first) on, in their places among
  /// `elements` of the whole tensor.
  void put(std::int64_t first, std::span<const std::byte> mine, std::size_t width,
           std::span<std::byte> elements) const;

 private:
  std::pair<std::int64_t, std::int64_t> run_at(std::int64_t place) const;

  Shape whole_;
  int dimension_ = 0;
  std::vector<Range> kept_;
  std::int64_t inner_ = 1;   ///< elements of one index
  std::int64_t period_ = 0;  ///< elements of all indices, and of those that are kept
  std::int64_t kept_period_ = 0;
};

/// Rank r's of `count` rows or columns; what does not divide evenly gives the first ranks one more.
Shard::Range part_of(std::int64_t count, int rank, int ranks);

}  // namespace sluice
