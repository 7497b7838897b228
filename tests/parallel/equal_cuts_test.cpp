#include "parallel/data_parallel/bucket_plan.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"

// Ranks that divide tensors own the same ones, whatever the sizes of their shards.

namespace sluice::test::equal_cuts_test {
namespace {

constexpr std::size_t one_bucket = std::size_t{1} << 40;

}  // namespace

TEST_CASE("shards of different sizes are cut at the same tensors as the first") {
  const auto shard = [](std::int64_t rows) {
    std::vector<Parameter> all;
    for (int i = 0; i < 12; ++i) {
      all.push_back({"matrix", {rows, i % 2 == 0 ? 128 : 64}, {}, nullptr});
      all.push_back({"norm", {64}, {}, nullptr});
    }
    return all;
  };
  for (const bool narrow : {false, true}) {
    const SpaceLayout large(shard(180), {.narrow_gradients = narrow});
    const SpaceLayout small(shard(70), {.narrow_gradients = narrow});
    for (const std::size_t bytes : {std::size_t{100000}, std::size_t{300000}, one_bucket}) {
      CAPTURE(narrow, bytes);
      const BucketPlan::Options options{.ranks = 3, .bucket_bytes = bytes, .whole_tensors = true};
      const BucketPlan first(large, options), own(small, options), like(small, options, &large);
      // The slots of each bucket, and those that each rank owns.
      const auto tensors = [](const BucketPlan& plan, const SpaceLayout& layout) {
        std::vector<std::vector<std::size_t>> all;
        for (const auto& bucket : plan.buckets())
          all.push_back(bucket.slots);
        for (int rank = 0; rank < 3; ++rank) {
          std::vector<std::size_t>& owned = all.emplace_back();
          for (const SpaceRange& range : plan.owned(rank))
            for (std::size_t i = 0; i < layout.slots.size(); ++i)
              if (layout.slots[i].offset >= range.begin && layout.slots[i].offset < range.end)
                owned.push_back(i);
        }
        return all;
      };
      CHECK((tensors(like, small) == tensors(first, large)));
      if (bytes < one_bucket) CHECK((tensors(own, small) != tensors(first, large)));
      // The parts of gradients are those of the weights, in each buffer.
      for (const auto& bucket : like.buckets()) {
        std::int64_t weights = 0, gradients = 0;
        for (const Part& part : bucket.parts)
          weights += part.count;
        for (const auto& buffer : bucket.gradients) {
          std::int64_t count = 0;
          for (const Part& part : buffer.parts)
            count += part.count;
          CHECK(count == buffer.end - buffer.begin);
          gradients += count;
        }
        CHECK(weights == bucket.space.end - bucket.space.begin);
        CHECK(gradients == weights);
      }
      CHECK(like.buckets().back().space.begin == 0);
      CHECK(like.buckets().front().space.end == small.size);
    }
  }
  CHECK(error_message([&] {
          const SpaceLayout layout(shard(70), {});
          BucketPlan(layout, {.ranks = 2}, &layout);
        }) != "(no error)");
}

}  // namespace sluice::test::equal_cuts_test
