#include "parallel/partition.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// What is never divided.
struct Unit {
  SpaceRange space;
  bool narrow;
  std::int64_t gradient;  ///< where its gradient begins

  std::int64_t size() const { return space.end - space.begin; }
};

std::vector<Unit> units_of(const SpaceLayout& layout, const Partition::Options& options) {
  std::vector<Unit> units;
  for (const auto& stretch : layout.stretches) {
    std::vector<std::int64_t> cuts;
    if (options.ranks == 1) {  // nothing is divided
      cuts.push_back(0);
    } else if (options.whole_tensors) {
      for (const auto& slot : layout.slots)
        if (slot.offset >= stretch.offset && slot.offset < stretch.offset + stretch.size)
          cuts.push_back(slot.offset - stretch.offset);
    } else {
      for (std::int64_t block = 0; block < stretch.blocks(); ++block)
        cuts.push_back(block * stretch.block);
    }
    cuts.push_back(stretch.size);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
      units.push_back({.space = {stretch.offset + cuts[i], stretch.offset + cuts[i + 1]},
                       .narrow = stretch.narrow,
                       .gradient = stretch.gradient_offset + cuts[i]});
  }
  return units;
}

using Units = std::span<const Unit>;

SpaceRange range_of(Units units, std::int64_t otherwise) {
  if (units.empty()) return {otherwise, otherwise};
  return {units.front().space.begin, units.back().space.end};
}

/// Of the units in one gradient buffer; empty ranges begin at `otherwise`.
SpaceRange gradients_of(Units units, bool narrow, std::int64_t otherwise) {
  SpaceRange range{otherwise, otherwise};
  bool first = true;
  for (const Unit& unit : units) {
    if (unit.narrow != narrow) continue;
    if (std::exchange(first, false)) range.begin = unit.gradient;
    range.end = unit.gradient + unit.size();
  }
  return range;
}

/// The units of each rank: those whose beginning lies in its share of the elements.
std::vector<Units> divide(Units units, int ranks) {
  const SpaceRange all = range_of(units, 0);
  std::vector<Units> parts;
  std::size_t first = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t share = (all.end - all.begin) * (rank + 1) / ranks;
    std::size_t end = first;
    while (end < units.size() && (rank + 1 == ranks || units[end].space.begin - all.begin < share))
      ++end;
    parts.push_back(units.subspan(first, end - first));
    first = end;
  }
  return parts;
}

Partition::Bucket bucket_of(Units units, const SpaceLayout& layout, int ranks) {
  const SpaceRange space = range_of(units, 0);
  Partition::Bucket bucket{.space = space};
  const auto shares = divide(units, ranks);
  for (const Units& share : shares) {
    const SpaceRange range = range_of(share, space.begin);
    bucket.parts.push_back({range.begin - space.begin, range.end - range.begin});
  }
  for (const bool narrow : {false, true}) {
    const SpaceRange all = gradients_of(units, narrow, 0);
    if (all.begin == all.end) continue;
    Partition::Gradients gradients{.narrow = narrow, .begin = all.begin, .end = all.end};
    for (const Units& share : shares) {
      const SpaceRange range = gradients_of(share, narrow, all.begin);
      gradients.parts.push_back({range.begin - all.begin, range.end - range.begin});
    }
    bucket.gradients.push_back(std::move(gradients));
  }
  for (std::size_t i = 0; i < layout.slots.size(); ++i) {
    const auto& slot = layout.slots[i];
    if (slot.offset < space.end && slot.offset + slot.size > space.begin) bucket.slots.push_back(i);
  }
  return bucket;
}

}  // namespace

Partition::Partition(const SpaceLayout& layout, const Options& options) {
  check(options.ranks > 0, "a parameter space is divided between one rank or more");
  const auto units = units_of(layout, options);
  for (std::size_t end = units.size(); end > 0;) {
    std::size_t begin = end, bytes = 0;
    while (begin > 0) {
      const Unit& unit = units[begin - 1];
      const std::size_t more = static_cast<std::size_t>(unit.size()) *
                               (unit.narrow ? options.narrow_bytes : options.wide_bytes);
      if (begin < end && bytes + more > options.bucket_bytes) break;
      bytes += more;
      --begin;
    }
    buckets_.push_back(bucket_of(Units(units).subspan(begin, end - begin), layout, options.ranks));
    end = begin;
  }
}

std::vector<SpaceRange> Partition::owned(int rank) const {
  std::vector<SpaceRange> ranges;
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    const Part& part = bucket->parts[static_cast<std::size_t>(rank)];
    const std::int64_t begin = bucket->space.begin + part.offset;
    if (part.count == 0) continue;
    if (!ranges.empty() && ranges.back().end == begin)
      ranges.back().end += part.count;
    else
      ranges.push_back({begin, begin + part.count});
  }
  return ranges;
}

std::int64_t Partition::largest_part(bool narrow) const {
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets_)
    for (const Gradients& gradients : bucket.gradients)
      if (gradients.narrow == narrow)
        for (const Part& part : gradients.parts)
          largest = std::max(largest, part.count);
  return largest;
}

}  // namespace sluice
