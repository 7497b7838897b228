#include "parallel/data_parallel/bucket_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// Consecutive units of a stretch: ranges that are never divided between ranks or buckets. A model
/// of 175B parameters has 10 million, so they are counted and not listed.
struct Run {
  SpaceRange space;
  std::int64_t unit;  ///< elements in a unit; the last one may be shorter
  bool narrow;
  std::int64_t gradient;  ///< where its gradient begins
  int section;

  std::int64_t size() const { return space.end - space.begin; }
  std::int64_t units() const { return (size() + unit - 1) / unit; }
  /// Returns some of its units: `count` from number `first` on.
  Run some(std::int64_t first, std::int64_t count) const {
    const std::int64_t begin = space.begin + first * unit;
    return {.space = {begin, std::min(space.end, begin + count * unit)},
            .unit = unit,
            .narrow = narrow,
            .gradient = gradient + first * unit,
            .section = section};
  }
  /// Returns the number of its units that begin before `place`.
  std::int64_t units_before(std::int64_t place) const {
    const std::int64_t elements = std::clamp<std::int64_t>(place - space.begin, 0, size());
    return (elements + unit - 1) / unit;
  }
};
using Runs = std::vector<Run>;

Runs runs_of(const SpaceLayout& layout, const BucketPlan::Options& options) {
  const bool whole = options.ranks == 1 || options.whole_tensors;
  Runs runs;
  for (const auto& stretch : layout.stretches)
    if (stretch.size > 0)
      runs.push_back({.space = {stretch.offset, stretch.offset + stretch.size},
                      .unit = whole ? stretch.size : stretch.block,
                      .narrow = stretch.narrow,
                      .gradient = stretch.gradient_offset,
                      .section = stretch.section});
  return runs;
}

std::int64_t units_of(const Runs& runs) {
  std::int64_t units = 0;
  for (const Run& run : runs)
    units += run.units();
  return units;
}

/// Records where units begin and end, which are added in ascending order.
struct Extent {
  std::optional<SpaceRange> space{};
  /// Ranges of their gradients: in the wide buffer and in the narrow one.
  std::array<std::optional<SpaceRange>, 2> gradients{};

  void add(const Run& run) {
    extend(space, run.space.begin, run.size());
    extend(gradients[run.narrow ? 1 : 0], run.gradient, run.size());
  }

 private:
  static void extend(std::optional<SpaceRange>& range, std::int64_t begin, std::int64_t size) {
    if (!range) range = {begin, begin};
    range->end = begin + size;
  }
};

Extent extent_of(const Runs& runs) {
  Extent all;
  for (const Run& run : runs)
    all.add(run);
  return all;
}

/// Divides units between ranks: each goes to the rank in whose share of the elements it begins. If
/// there are fewer units than ranks, rank `turn` gets the first, to spare the first ranks.
std::vector<Extent> divide(const Runs& runs, int ranks, std::size_t turn) {
  std::vector<Extent> parts(static_cast<std::size_t>(ranks));
  if (units_of(runs) < ranks) {
    for (const Run& run : runs)
      for (std::int64_t i = 0; i < run.units(); ++i)
        parts[turn++ % parts.size()].add(run.some(i, 1));
    return parts;
  }
  const SpaceRange all{runs.front().space.begin, runs.back().space.end};
  auto run = runs.begin();
  std::int64_t given = 0;  // units of the run that ranks have
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t share = all.begin + (all.end - all.begin) * (rank + 1) / ranks;
    for (; run != runs.end(); ++run, given = 0) {
      const std::int64_t before = run->units_before(share);
      if (before > given)
        parts[static_cast<std::size_t>(rank)].add(run->some(given, before - given));
      given = before;
      if (before < run->units()) break;
    }
  }
  return parts;
}

/// Takes units from the end of `runs`: one at least, and as many as fit into a bucket.
Runs take_bucket(Runs& runs, const BucketPlan::Options& options) {
  Runs bucket;
  std::size_t room = options.bucket_bytes;
  while (!runs.empty()) {
    Run& run = runs.back();
    if (options.by_section && !bucket.empty() && bucket.front().section != run.section) break;
    const std::size_t width = run.narrow ? options.narrow_bytes : options.wide_bytes;
    const std::int64_t units = run.units();
    const auto bytes_from = [&](std::int64_t first) {
      return static_cast<std::size_t>(run.some(first, units).size()) * width;
    };
    std::int64_t first = units;
    if (bucket.empty() || bytes_from(units - 1) <= room) {
      // The last unit may be shorter than the others.
      const std::size_t last = std::min(bytes_from(units - 1), room);
      const auto more = (room - last) / (static_cast<std::size_t>(run.unit) * width);
      first = units - 1 - std::min(static_cast<std::int64_t>(more), units - 1);
      room -= std::min(bytes_from(first), room);
    }
    if (first == units) break;
    bucket.insert(bucket.begin(), run.some(first, units - first));
    if (first > 0) {
      run = run.some(0, first);
      break;
    }
    runs.pop_back();
  }
  return bucket;
}

BucketPlan::Bucket bucket_of(const Runs& runs, const SpaceLayout& layout, int ranks,
                             std::size_t turn) {
  const Extent all = extent_of(runs);
  const SpaceRange space = *all.space;
  BucketPlan::Bucket bucket{.space = space};
  const auto shares = divide(runs, ranks, turn);
  // An empty part begins where the whole does.
  const auto parts_of = [&](const SpaceRange& whole, auto&& range_in) {
    std::vector<Part> parts;
    parts.reserve(shares.size());
    for (const Extent& share : shares) {
      const std::optional<SpaceRange>& range = range_in(share);
      parts.push_back(range ? Part{range->begin - whole.begin, range->end - range->begin} : Part{});
    }
    return parts;
  };
  bucket.parts = parts_of(space, [](const Extent& share) { return share.space; });
  for (const bool narrow : {false, true}) {
    const auto range_in = [narrow](const Extent& one) { return one.gradients[narrow ? 1 : 0]; };
    if (const std::optional<SpaceRange> whole = range_in(all))
      bucket.gradients.push_back({.narrow = narrow,
                                  .begin = whole->begin,
                                  .end = whole->end,
                                  .parts = parts_of(*whole, range_in)});
  }
  const auto& slots = layout.slots;  // by ascending offset
  auto slot = std::ranges::partition_point(
      slots, [&](const auto& one) { return one.offset + one.size <= space.begin; });
  for (; slot != slots.end() && slot->offset < space.end; ++slot)
    bucket.slots.push_back(static_cast<std::size_t>(slot - slots.begin()));
  return bucket;
}

/// The places where stretches begin and end, in two layouts of the same stretches.
class Borders {
 public:
  /// `place(stretch)`: where it begins, or none; `ends`: where the last one ends.
  template <class Place>
  Borders(const SpaceLayout& from, const SpaceLayout& to,
          std::pair<std::int64_t, std::int64_t> ends, Place&& place) {
    for (std::size_t i = 0; i < from.stretches.size(); ++i)
      if (from.stretches[i].size > 0 && place(from.stretches[i]))
        places_.emplace(*place(from.stretches[i]), *place(to.stretches[i]));
    places_.emplace(ends);
  }

  void move(std::int64_t& begin, std::int64_t& end, std::vector<Part>& parts) const {
    const std::int64_t old = begin;
    begin = places_.at(begin);
    end = places_.at(end);
    for (Part& part : parts) {
      if (part.count == 0) continue;
      const std::int64_t first = old + part.offset;
      const std::int64_t moved = places_.at(first);
      part = {moved - begin, places_.at(first + part.count) - moved};
    }
  }

 private:
  std::map<std::int64_t, std::int64_t> places_;
};

/// Moves buckets of one layout to another one of the same stretches.
void move_buckets(std::vector<BucketPlan::Bucket>& buckets, const SpaceLayout& from,
                  const SpaceLayout& to) {
  check(from.stretches.size() == to.stretches.size(),
        "ranks that divide tensors have shards of the same tensors");
  using Stretch = SpaceLayout::Stretch;
  using Place = std::optional<std::int64_t>;
  const auto gradient = [](bool narrow) {
    return [narrow](const Stretch& stretch) {
      return stretch.narrow == narrow ? Place(stretch.gradient_offset) : Place();
    };
  };
  const Borders space(from, to, {from.size, to.size},
                      [](const Stretch& stretch) { return Place(stretch.offset); });
  const Borders wide(from, to, {from.wide_size, to.wide_size}, gradient(false));
  const Borders narrow(from, to, {from.narrow_size, to.narrow_size}, gradient(true));
  for (BucketPlan::Bucket& bucket : buckets) {
    space.move(bucket.space.begin, bucket.space.end, bucket.parts);
    for (BucketPlan::Gradients& gradients : bucket.gradients)
      (gradients.narrow ? narrow : wide).move(gradients.begin, gradients.end, gradients.parts);
  }
}

}  // namespace

BucketPlan::BucketPlan(const SpaceLayout& own, const Options& options, const SpaceLayout* like) {
  check(options.ranks > 0, "a parameter space is divided between one rank or more");
  check(like == nullptr || options.whole_tensors, "only cuts between tensors have their like");
  const SpaceLayout& layout = like != nullptr ? *like : own;
  Runs runs = runs_of(layout, options);
  std::size_t turn = 0;
  while (!runs.empty()) {
    const Runs bucket = take_bucket(runs, options);
    buckets_.push_back(bucket_of(bucket, layout, options.ranks, turn));
    if (const std::int64_t units = units_of(bucket); units < options.ranks)
      turn += static_cast<std::size_t>(units);
  }
  if (like != nullptr) move_buckets(buckets_, *like, own);
  const auto raise = [&](std::int64_t& most, const std::vector<Part>& parts) {
    most = std::max(most, padded_count(parts) * options.ranks);
  };
  for (const Bucket& bucket : buckets_) {
    raise(padded_.weights, bucket.parts);
    for (const Gradients& gradients : bucket.gradients)
      raise(gradients.narrow ? padded_.narrow : padded_.wide, gradients.parts);
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
