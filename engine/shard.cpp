#include "engine/shard.h"

#include <algorithm>
#include <cstring>

namespace sluice {

Shard::Shard(Shape whole, int dimension, std::vector<Range> kept)
    : whole_(std::move(whole)), dimension_(dimension), kept_(std::move(kept)) {
  check(dimension >= 0 && dimension < static_cast<int>(whole_.size()) && !kept_.empty(),
        "a tensor is divided along a dimension that it has");
  const auto at = whole_.begin() + dimension;
  inner_ = element_count({at + 1, whole_.end()});
  period_ = *at * inner_;
  std::int64_t end = 0;
  for (const Range& range : kept_) {
    check(range.begin >= end && range.end > range.begin && range.end <= *at,
          "the ranges of a shard must be ascending and within the tensor");
    end = range.end;
    kept_period_ += (range.end - range.begin) * inner_;
  }
}

Shape Shard::shape() const {
  Shape shape = whole_;
  shape[static_cast<std::size_t>(dimension_)] = kept_period_ / inner_;
  return shape;
}

std::int64_t Shard::place(std::int64_t index) const {
  if (!divided()) return index;
  std::int64_t place = index / period_ * kept_period_;
  for (const Range& range : kept_)
    place += std::clamp(index % period_ - range.begin * inner_, std::int64_t{0},
                        (range.end - range.begin) * inner_);
  return place;
}

/// Returns an element's index in the whole and the number of contiguous elements from there on.
std::pair<std::int64_t, std::int64_t> Shard::run_at(std::int64_t place) const {
  std::int64_t rest = place % kept_period_;
  auto range = kept_.begin();
  for (; rest >= (range->end - range->begin) * inner_; ++range)
    rest -= (range->end - range->begin) * inner_;
  return {place / kept_period_ * period_ + range->begin * inner_ + rest,
          (range->end - range->begin) * inner_ - rest};
}

std::span<std::byte> Shard::pick(std::int64_t first, std::span<std::byte> elements,
                                 std::size_t width) const {
  const auto count = static_cast<std::int64_t>(elements.size() / width);
  const std::int64_t begin = place(first), mine = place(first + count) - begin;
  for_each_run(begin, mine, [&](std::int64_t at, std::int64_t index, std::int64_t length) {
    std::memmove(elements.data() + static_cast<std::size_t>(at - begin) * width,
                 elements.data() + static_cast<std::size_t>(index - first) * width,
                 static_cast<std::size_t>(length) * width);
  });
  return elements.first(static_cast<std::size_t>(mine) * width);
}

void Shard::put(std::int64_t place, std::span<const std::byte> mine, std::size_t width,
                std::int64_t first, std::span<std::byte> elements) const {
  for_each_run(place, static_cast<std::int64_t>(mine.size() / width),
               [&](std::int64_t at, std::int64_t index, std::int64_t length) {
                 std::memcpy(elements.data() + static_cast<std::size_t>(index - first) * width,
                             mine.data() + static_cast<std::size_t>(at - place) * width,
                             static_cast<std::size_t>(length) * width);
               });
}

Shard::Range part_of(std::int64_t count, int rank, int ranks) {
  const std::int64_t each = count / ranks, more = count % ranks;
  const std::int64_t begin = rank * each + std::min<std::int64_t>(rank, more);
  return {begin, begin + each + (rank < more ? 1 : 0)};
}

}  // namespace sluice
