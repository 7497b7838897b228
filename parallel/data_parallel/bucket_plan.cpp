#include "parallel/data_parallel/bucket_plan.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// A range of the space that is never divided between ranks or buckets.
struct Unit {
  SpaceRange space;
  bool narrow;
  std::int64_t gradient;  ///< where its gradient begins

  std::int64_t size() const { return space.end - space.begin; }
};

std::vector<Unit> units_of(const SpaceLayout& layout, const BucketPlan::Options& options) {
  std::vector<Unit> units;
  for (const auto& stretch : layout.stretches) {
    const bool whole = options.ranks == 1 || options.whole_tensors;
    const std::int64_t step = whole ? stretch.size : stretch.block;
    for (std::int64_t begin = 0; begin < stretch.size; begin += step)
      units.push_back(
          {.space = {stretch.offset + begin, stretch.offset + std::min(begin + step, stretch.size)},
           .narrow = stretch.narrow,
           .gradient = stretch.gradient_offset + begin});
  }
  return units;
}

using Units = std::span<const Unit>;

SpaceRange range_of(Units units, std::int64_t otherwise) {
  if (units.empty()) return {otherwise, otherwise};
  return {units.front().space.begin, units.back().space.end};
}

/// Returns the range of the units' gradients in one gradient buffer; if it is empty, it begins at
/// `otherwise`.
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

/// Divides units between ranks: each goes to the rank in whose share of the elements it begins. If
/// there are fewer units than ranks, rank `turn` gets the first, to spare the first ranks.
std::vector<Units> divide(Units units, int ranks, std::size_t turn) {
  const SpaceRange all = range_of(units, 0);
  std::vector<Units> parts(static_cast<std::size_t>(ranks));
  if (units.size() < parts.size()) {
    for (std::size_t i = 0; i < units.size(); ++i)
      parts[(turn + i) % parts.size()] = units.subspan(i, 1);
    return parts;
  }
  std::size_t first = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t share = (all.end - all.begin) * (rank + 1) / ranks;
    std::size_t end = first;
    while (end < units.size() && units[end].space.begin - all.begin < share)
      ++end;
    parts[static_cast<std::size_t>(rank)] = units.subspan(first, end - first);
    first = end;
  }
  return parts;
}

BucketPlan::Bucket bucket_of(Units units, const SpaceLayout& layout, int ranks, std::size_t turn) {
  const SpaceRange space = range_of(units, 0);
  BucketPlan::Bucket bucket{.space = space};
  const auto shares = divide(units, ranks, turn);
  for (const Units& share : shares) {
    const SpaceRange range = range_of(share, space.begin);
    bucket.parts.push_back({range.begin - space.begin, range.end - range.begin});
  }
  for (const bool narrow : {false, true}) {
    const SpaceRange all = gradients_of(units, narrow, 0);
    if (all.begin == all.end) continue;
    BucketPlan::Gradients gradients{.narrow = narrow, .begin = all.begin, .end = all.end};
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

BucketPlan::BucketPlan(const SpaceLayout& layout, const Options& options) {
  check(options.ranks > 0, "a parameter space is divided between one rank or more");
  const auto units = units_of(layout, options);
  std::size_t turn = 0;
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
    const Units bucket = Units(units).subspan(begin, end - begin);
    buckets_.push_back(bucket_of(bucket, layout, options.ranks, turn));
    if (bucket.size() < static_cast<std::size_t>(options.ranks)) turn += bucket.size();
    end = begin;
  }
}

std::vector<SpaceRange> BucketPlan::owned(int rank) const {
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

}  // namespace sluice
