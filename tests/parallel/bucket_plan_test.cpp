#include "parallel/data_parallel/bucket_plan.h"

#include <algorithm>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/form.h"

namespace sluice::test::bucket_plan_test {
namespace {

using Parameters = std::vector<Parameter>;
constexpr std::size_t one_bucket = std::size_t{1} << 40;

Parameter parameter(const std::string& name, Shape shape, bool embedding = false, int section = 0) {
  return {name, std::move(shape), {}, nullptr, embedding, section};
}

/// Every kind of tensor: embeddings, matrices of one block and of several, whose rows divide a
/// block or not, matrices that count as small, biases.
Parameters model(bool sections) {
  Parameters all{parameter("wte", {500, 100}, true), parameter("wpe", {40, 100}, true)};
  for (const int block : {0, 1}) {
    const std::string prefix = "h." + std::to_string(block) + ".";
    const auto add = [&](const char* name, const Shape& shape) {
      all.push_back(parameter(prefix + name, shape, false, sections ? block + 1 : 0));
    };
    add("ln.weight", {100});
    add("ln.bias", {100});
    add("attn", {100, 300});
    add("attn.bias", {300});
    add("tiny", {8, 32});
    add("mlp", {400, 128});
  }
  all.push_back(parameter("ln_f", {100}, false, sections ? 3 : 0));
  return all;
}

/// A matrix of two blocks, a bias of one unit of alignment, a matrix of one block with a gap.
Parameters three() {
  return {parameter("a", {128, 256}), parameter("b", {64}), parameter("c", {100, 100})};
}

struct Case {
  Parameters parameters;
  bool narrow;
  BucketPlan::Options options;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  std::int64_t place = 0;
  const Parameters single{parameter("one", {7})};
  for (const auto& parameters : {model(false), model(true), three(), single})
    for (const bool narrow : {false, true})
      for (const bool whole : {false, true})
        for (const bool by_section : {false, true})
          for (const int ranks : {1, 2, 3, 4, 8})
            for (const std::size_t bytes :
                 {std::size_t{1}, std::size_t{100'000}, std::size_t{400'000}, one_bucket})
              // 20 sizes and ranks, so that every fourth has each of them with some of the rest.
              if (in_form(4, {place++, narrow, whole, by_section, ranks}))
                list.push_back({parameters,
                                narrow,
                                {.ranks = ranks,
                                 .bucket_bytes = bytes,
                                 .whole_tensors = whole,
                                 .by_section = by_section}});
  return list;
}

/// Returns the section of the element at `at`.
int section_at(const SpaceLayout& layout, std::int64_t at) {
  const auto after =
      std::ranges::upper_bound(layout.stretches, at, {}, &SpaceLayout::Stretch::offset);
  return std::prev(after)->section;
}

std::string name_of(const Case& c) {
  return std::to_string(c.parameters.size()) + " parameters, narrow " + std::to_string(c.narrow) +
         ", ranks " + std::to_string(c.options.ranks) + ", bytes " +
         std::to_string(c.options.bucket_bytes) + ", whole " +
         std::to_string(c.options.whole_tensors) + ", by section " +
         std::to_string(c.options.by_section);
}

SpaceLayout layout_of(const Case& c) {
  return SpaceLayout(c.parameters, {.narrow_gradients = c.narrow});
}

/// Returns where cuts are allowed, derived from the layout's promises and not from the division.
std::set<std::int64_t> allowed_cuts(const SpaceLayout& layout, const BucketPlan::Options& options) {
  std::set<std::int64_t> cuts{layout.size};
  if (options.whole_tensors && options.ranks > 1)
    for (const auto& slot : layout.slots)
      cuts.insert(slot.offset);
  for (const auto& stretch : layout.stretches) {
    cuts.insert(stretch.offset);
    if (options.ranks == 1 || options.whole_tensors) continue;
    for (std::int64_t at = 0; at < stretch.size; at += stretch.block)
      cuts.insert(stretch.offset + at);
  }
  return cuts;
}

/// Returns the indivisible pieces: a block, or a stretch without blocks. A rank may have one piece
/// too many and a bucket be too large by one.
std::vector<SpaceRange> pieces(const SpaceLayout& layout, const BucketPlan::Options& options) {
  std::vector<SpaceRange> all;
  for (const auto& stretch : layout.stretches) {
    const bool whole = options.ranks == 1 || options.whole_tensors;
    const std::int64_t step = whole ? stretch.size : stretch.block;
    for (std::int64_t at = 0; at < stretch.size; at += step)
      all.push_back({stretch.offset + at, stretch.offset + std::min(at + step, stretch.size)});
  }
  return all;
}

bool overlap(const SpaceRange& a, const SpaceRange& b) {
  return std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

/// The gradient's place, for each element of the space, and whether the gradient is narrow.
struct Place {
  bool narrow = false;
  std::int64_t at = 0;
};
std::vector<Place> places(const SpaceLayout& layout) {
  std::vector<Place> all;
  for (const auto& stretch : layout.stretches)
    for (std::int64_t i = 0; i < stretch.size; ++i)
      all.push_back({stretch.narrow, stretch.gradient_offset + i});
  return all;
}

/// Writes `rank` to the elements of a part; false where one has an owner already or is outside.
bool claim(std::vector<int>& owners, std::int64_t base, const Part& part, int rank) {
  for (std::int64_t i = base + part.offset; i < base + part.offset + part.count; ++i) {
    if (i < 0 || i >= static_cast<std::int64_t>(owners.size())) return false;
    if (std::exchange(owners[static_cast<std::size_t>(i)], rank) != -1) return false;
  }
  return true;
}

std::vector<int> nobody(std::int64_t size) {
  return std::vector<int>(static_cast<std::size_t>(size), -1);
}

/// The rank that has each element of the space.
std::vector<int> space_owners(const BucketPlan& bucket_plan, const SpaceLayout& layout) {
  auto owners = nobody(layout.size);
  for (const auto& bucket : bucket_plan.buckets())
    for (std::size_t rank = 0; rank < bucket.parts.size(); ++rank)
      REQUIRE(claim(owners, bucket.space.begin, bucket.parts[rank], static_cast<int>(rank)));
  return owners;
}

bool has_nobody(const std::vector<int>& owners) {
  return std::ranges::count(owners, -1) != 0;
}

}  // namespace

TEST_CASE("buckets cover the parameter space once, from its end, and keep to their size") {
  for (const Case& c : cases()) {
    INFO(name_of(c));
    const SpaceLayout layout = layout_of(c);
    const auto cuts = allowed_cuts(layout, c.options);
    const auto all = pieces(layout, c.options);
    const auto where = places(layout);
    const BucketPlan bucket_plan(layout, c.options);
    const auto bytes = [&](const SpaceRange& range) {
      std::size_t sum = 0;
      for (std::int64_t i = range.begin; i < range.end; ++i)
        sum += where[static_cast<std::size_t>(i)].narrow ? c.options.narrow_bytes
                                                         : c.options.wide_bytes;
      return sum;
    };
    std::int64_t end = layout.size;
    for (const auto& bucket : bucket_plan.buckets()) {
      REQUIRE(bucket.space.end == end);
      REQUIRE(bucket.space.begin < end);
      REQUIRE(cuts.contains(bucket.space.begin));
      end = bucket.space.begin;
      const std::size_t size = bytes(bucket.space);
      const auto within = [&](const SpaceRange& piece) { return overlap(piece, bucket.space); };
      if (std::ranges::count_if(all, within) > 1) REQUIRE(size <= c.options.bucket_bytes);
      // And no bucket is smaller than it had to be: each one costs a latency.
      for (const SpaceRange& piece : all)
        if (piece.end == end &&
            (!c.options.by_section || section_at(layout, piece.begin) == section_at(layout, end)))
          REQUIRE(size + bytes(piece) > c.options.bucket_bytes);
      std::vector<std::size_t> slots;
      for (std::size_t i = 0; i < layout.slots.size(); ++i) {
        const auto& slot = layout.slots[i];
        if (overlap({slot.offset, slot.offset + slot.size}, bucket.space)) slots.push_back(i);
      }
      REQUIRE(bucket.slots == slots);
    }
    REQUIRE(end == 0);
  }
}

TEST_CASE("a bucket's parts are disjoint, cover it, and are cut at blocks or between tensors") {
  for (const Case& c : cases()) {
    INFO(name_of(c));
    const SpaceLayout layout = layout_of(c);
    const auto cuts = allowed_cuts(layout, c.options);
    const auto all = pieces(layout, c.options);
    const BucketPlan bucket_plan(layout, c.options);
    for (const auto& bucket : bucket_plan.buckets()) {
      REQUIRE(bucket.parts.size() == static_cast<std::size_t>(c.options.ranks));
      const std::int64_t size = bucket.space.end - bucket.space.begin;
      std::int64_t largest_piece = 0, seen = 0;
      for (const auto& piece : all)
        if (overlap(piece, bucket.space))
          largest_piece = std::max(largest_piece, piece.end - piece.begin);
      for (const Part& part : bucket.parts) {
        REQUIRE(part.count >= 0);
        if (part.count == 0) continue;
        REQUIRE(cuts.contains(bucket.space.begin + part.offset));
        REQUIRE(part.count <= size / c.options.ranks + largest_piece);
        seen += part.count;
      }
      REQUIRE(seen == size);
    }
    REQUIRE_FALSE(has_nobody(space_owners(bucket_plan, layout)));
  }
}

TEST_CASE("a rank's gradients are those of its part of the space, in both buffers") {
  bool both = false;
  for (const Case& c : cases()) {
    INFO(name_of(c));
    const SpaceLayout layout = layout_of(c);
    const BucketPlan bucket_plan(layout, c.options);
    auto wide = nobody(layout.wide_size), narrow = nobody(layout.narrow_size);
    for (const auto& bucket : bucket_plan.buckets()) {
      REQUIRE(bucket.gradients.size() >= 1);
      both = both || bucket.gradients.size() == 2;
      for (const auto& gradients : bucket.gradients) {
        REQUIRE(gradients.begin < gradients.end);
        REQUIRE(gradients.parts.size() == bucket.parts.size());
        std::int64_t sum = 0;
        for (std::size_t rank = 0; rank < gradients.parts.size(); ++rank) {
          const Part& part = gradients.parts[rank];
          REQUIRE(part.offset >= 0);
          REQUIRE(gradients.begin + part.offset + part.count <= gradients.end);
          REQUIRE(claim(gradients.narrow ? narrow : wide, gradients.begin, part,
                        static_cast<int>(rank)));
          sum += part.count;
        }
        REQUIRE(sum == gradients.end - gradients.begin);
      }
    }
    REQUIRE_FALSE(has_nobody(wide));
    REQUIRE_FALSE(has_nobody(narrow));
    const auto owners = space_owners(bucket_plan, layout);
    const auto where = places(layout);
    std::int64_t unlike = 0;
    for (std::size_t i = 0; i < owners.size(); ++i) {
      const auto& buffer = where[i].narrow ? narrow : wide;
      unlike += buffer[static_cast<std::size_t>(where[i].at)] != owners[i];
    }
    REQUIRE(unlike == 0);
  }
  REQUIRE(both);  // else a bucket with two buffers was never looked at
}

TEST_CASE("what the ranks own is ascending, disjoint, and the whole space") {
  for (const Case& c : cases()) {
    INFO(name_of(c));
    const SpaceLayout layout = layout_of(c);
    const BucketPlan bucket_plan(layout, c.options);
    auto owners = nobody(layout.size);
    for (int rank = 0; rank < c.options.ranks; ++rank) {
      std::int64_t end = -1;
      for (const SpaceRange& range : bucket_plan.owned(rank)) {
        REQUIRE(range.begin > end);  // touching ones are one
        REQUIRE(range.end > range.begin);
        end = range.end;
        REQUIRE(claim(owners, 0, {range.begin, range.end - range.begin}, rank));
      }
    }
    REQUIRE(owners == space_owners(bucket_plan, layout));
    if (c.options.ranks == 1)
      REQUIRE(bucket_plan.owned(0) == std::vector<SpaceRange>{{0, layout.size}});
  }
}

TEST_CASE("whole tensors stay with one rank") {
  for (const Case& c : cases()) {
    if (!c.options.whole_tensors) continue;
    INFO(name_of(c));
    const SpaceLayout layout = layout_of(c);
    const auto owners = space_owners(BucketPlan(layout, c.options), layout);
    for (const auto& slot : layout.slots) {
      const auto first = owners.begin() + slot.offset;
      INFO(slot.name);
      REQUIRE(std::count(first, first + slot.size, *first) == slot.size);
    }
  }
}

TEST_CASE("a bucket by section is of one section") {
  bool mixed = false;
  for (const Case& c : cases()) {
    INFO(name_of(c));
    const SpaceLayout layout = layout_of(c);
    const BucketPlan bucket_plan(layout, c.options);
    for (const auto& bucket : bucket_plan.buckets()) {
      const bool same =
          section_at(layout, bucket.space.begin) == section_at(layout, bucket.space.end - 1);
      if (c.options.by_section) REQUIRE(same);
      mixed = mixed || !same;
    }
  }
  REQUIRE(mixed);  // else the sections never met in a bucket
}

TEST_CASE("a partition worked out by hand") {
  // a: two blocks of 64 rows; b; c: one block of 10000 elements and 48 of a gap.
  const SpaceLayout layout(three(), {});
  REQUIRE(layout.size == 42880);
  const auto parts = [](const BucketPlan::Bucket& bucket) {
    std::vector<std::pair<std::int64_t, std::int64_t>> list;
    for (const Part& part : bucket.parts)
      list.emplace_back(part.offset, part.count);
    return list;
  };
  using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;

  const BucketPlan two(layout, {.ranks = 2, .bucket_bytes = one_bucket});
  REQUIRE(two.buckets().size() == 1);
  CHECK(parts(two.buckets()[0]) == Pairs{{0, 32768}, {32768, 10112}});
  CHECK(two.owned(1) == std::vector<SpaceRange>{{32768, 42880}});
  CHECK(two.buckets()[0].slots == std::vector<std::size_t>{0, 1, 2});

  // b and c fit into 40 KiB; one block of a has 64 KiB, which is a bucket of its own.
  const BucketPlan small(layout, {.ranks = 2, .bucket_bytes = 40960});
  REQUIRE(small.buckets().size() == 3);
  CHECK(small.buckets()[0].space == SpaceRange{32768, 42880});
  CHECK(small.buckets()[1].space == SpaceRange{16384, 32768});
  CHECK(small.buckets()[2].space == SpaceRange{0, 16384});
  CHECK(small.buckets()[0].slots == std::vector<std::size_t>{1, 2});
  CHECK(small.buckets()[2].slots == std::vector<std::size_t>{0});
  CHECK(parts(small.buckets()[0]) == Pairs{{0, 10112}, {0, 0}});
  // One block is one rank's: the other has nothing of that bucket.
  for (const std::size_t i : {1U, 2U}) {
    const auto& both = small.buckets()[i].parts;
    CHECK(std::max(both[0].count, both[1].count) == 16384);
    CHECK(std::min(both[0].count, both[1].count) == 0);
  }

  // Eight ranks and four blocks: four ranks have nothing at least.
  const BucketPlan eight(layout, {.ranks = 8, .bucket_bytes = one_bucket});
  int idle = 0;
  for (int rank = 0; rank < 8; ++rank)
    idle += eight.owned(rank).empty();
  CHECK(idle >= 4);
  CHECK(idle < 8);

  const SpaceLayout narrow(three(), {.narrow_gradients = true});
  const BucketPlan mixed(narrow, {.ranks = 2, .bucket_bytes = one_bucket});
  REQUIRE(mixed.buckets()[0].gradients.size() == 2);
  const auto& wide_gradients = mixed.buckets()[0].gradients[0];
  CHECK_FALSE(wide_gradients.narrow);
  CHECK(wide_gradients.end - wide_gradients.begin == 64);
  CHECK(wide_gradients.parts[0].count == 0);
  CHECK(wide_gradients.parts[1].count == 64);
  const auto& narrow_gradients = mixed.buckets()[0].gradients[1];
  CHECK(narrow_gradients.narrow);
  CHECK(narrow_gradients.parts[0].count == 32768);
  CHECK(narrow_gradients.parts[1].offset == 32768);
  CHECK(narrow_gradients.parts[1].count == 10048);
  // Two narrow blocks fit in place of one: buckets count bytes as they are sent.
  CHECK(BucketPlan(narrow, {.ranks = 2, .bucket_bytes = 65536}).buckets().size() == 2);
  CHECK(BucketPlan(layout, {.ranks = 2, .bucket_bytes = 65536}).buckets().size() == 3);
}

TEST_CASE("buckets of fewer blocks than ranks go to all ranks in turn") {
  const Parameter one_block{"m", {128, 128}, {}, nullptr};
  const SpaceLayout layout(Parameters(8, one_block), {});
  const BucketPlan plan(layout, {.ranks = 4, .bucket_bytes = 1});
  for (int rank = 0; rank < 4; ++rank)
    CHECK(plan.owned(rank).size() == 2);
}

TEST_CASE("a space without parameters has no buckets, and no ranks are an error") {
  const SpaceLayout layout(Parameters{}, {});
  const BucketPlan bucket_plan(layout, {.ranks = 3});
  CHECK(bucket_plan.buckets().empty());
  CHECK(bucket_plan.owned(2).empty());
  CHECK(error_message([&] { BucketPlan(layout, {.ranks = 0}); }) != "(no error)");
}

}  // namespace sluice::test::bucket_plan_test
