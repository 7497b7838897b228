#include <functional>
#include <numeric>

#include "models/decoder/parallelize.h"
#include "tests/support/catch.h"

namespace sluice::test::split_blocks_test {
namespace {

using Counts = std::vector<std::int64_t>;

double dearest(const Counts& blocks, const BlockCosts& costs) {
  double most = 0;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage)
    most = std::max(most, static_cast<double>(blocks[stage]) * costs.block +
                              (stage == 0 ? costs.first : 0) +
                              (stage + 1 == blocks.size() ? costs.last : 0));
  return most;
}

/// Returns the least cost among all ways to divide the blocks.
double least(std::int64_t blocks, int stages, const BlockCosts& costs) {
  double best = INFINITY;
  Counts counts;
  const std::function<void(std::int64_t)> extend = [&](std::int64_t left) {
    if (static_cast<int>(counts.size()) + 1 == stages) {
      counts.push_back(left);
      best = std::min(best, dearest(counts, costs));
      counts.pop_back();
      return;
    }
    const auto stages_after = stages - 1 - static_cast<std::int64_t>(counts.size());
    for (std::int64_t count = 1; count <= left - stages_after; ++count) {
      counts.push_back(count);
      extend(left - count);
      counts.pop_back();
    }
  };
  extend(blocks);
  return best;
}

Counts sizes(const std::vector<DecoderPart>& parts) {
  Counts counts;
  for (const DecoderPart& part : parts) {
    CHECK(part.first == std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    counts.push_back(part.last - part.first);
  }
  return counts;
}

}  // namespace

TEST_CASE("no division of blocks has a cheaper dearest stage") {
  for (const std::int64_t blocks : {1, 2, 3, 7, 9})
    for (int stages = 1; stages <= blocks; ++stages)
      for (const BlockCosts& costs :
           {BlockCosts{}, BlockCosts{1, 0.3, 2.5}, BlockCosts{0.1, 0.7, 0}, BlockCosts{3, 0, 1e9},
            BlockCosts{0.3, 0.1, 0.2}, BlockCosts{1, 3, 3}}) {
        CAPTURE(blocks, stages, costs.block, costs.first, costs.last);
        const Counts counts = balanced_blocks(blocks, stages, costs);
        CHECK(static_cast<int>(counts.size()) == stages);
        CHECK(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == blocks);
        CHECK(*std::ranges::min_element(counts) >= 1);
        CHECK(dearest(counts, costs) == Approx(least(blocks, stages, costs)).epsilon(1e-9));
      }
}

TEST_CASE("blocks are divided evenly, by parameters or as they are listed") {
  const DecoderConfig gpt2;
  CHECK(sizes(split_blocks(gpt2, 4, parse_block_split("blocks"))) == Counts{3, 3, 3, 3});
  CHECK(sizes(split_blocks(gpt2, 5, parse_block_split("blocks"))) == Counts{3, 3, 2, 2, 2});
  CHECK(sizes(split_blocks(gpt2, 4, parse_block_split("parameters"))) == Counts{1, 5, 5, 1});
  CHECK(sizes(split_blocks(gpt2, 4, parse_block_split("4,4,3,1"))) == Counts{4, 4, 3, 1});
  for (const char* wrong : {"4,4,4", "4,4,3,2", "0,4,4,4", "4,4,3,", "4;4;3;1", "-1,5,4,4", "time",
                            "", "9999999999999999999,1,1,1"})
    CHECK_THROWS_AS(split_blocks(gpt2, 4, parse_block_split(wrong)), Error);
  CHECK_THROWS_WITH(split_blocks(gpt2, 13, parse_block_split("blocks")),
                    Contains("13 stages needs 13 blocks or more, and the model has 12"));
}

}  // namespace sluice::test::split_blocks_test
