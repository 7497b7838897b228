#include <cstring>
#include <numeric>

#include "engine/shard.h"
#include "tests/support/catch.h"

namespace sluice::test::shard_test {
namespace {

/// Indices of the whole tensor that a shard has, found by looking at every one.
std::vector<std::int64_t> indices_of(const Shard& shard) {
  const Shape& whole = shard.whole();
  std::vector<std::int64_t> found;
  for (std::int64_t index = 0; index < element_count(whole); ++index) {
    std::int64_t inner = 1;
    for (std::size_t d = static_cast<std::size_t>(shard.dimension()) + 1; d < whole.size(); ++d)
      inner *= whole[d];
    const std::int64_t at = index / inner % whole[static_cast<std::size_t>(shard.dimension())];
    for (const auto& [begin, end] : shard.kept())
      if (at >= begin && at < end) found.push_back(index);
  }
  return found;
}

const std::vector<Shard> shards{
    {{7}, 0, {{2, 5}}},
    {{6, 5}, 0, {{0, 2}}},
    {{6, 5}, 0, {{3, 6}}},
    {{4, 9}, 1, {{1, 2}, {4, 5}, {7, 8}}},
    {{4, 9}, 1, {{0, 3}, {3, 6}, {6, 9}}},  // all of it
    {{3, 4, 5}, 1, {{1, 3}}},
    {{1003, 3}, 0, {{502, 1003}}},
};

}  // namespace

TEST_CASE("a shard has the elements of its ranges, in the tensor's order") {
  for (const Shard& shard : shards) {
    INFO(to_string(shard.whole()) << " along " << shard.dimension());
    const auto expected = indices_of(shard);
    CHECK(element_count(shard.shape()) == static_cast<std::int64_t>(expected.size()));
    for (std::int64_t index = 0; index <= element_count(shard.whole()); ++index)
      REQUIRE(shard.place(index) == std::ranges::lower_bound(expected, index) - expected.begin());
    // Whichever stretch is asked for, the runs make it up.
    const auto size = static_cast<std::int64_t>(expected.size());
    for (std::int64_t first = 0; first < size; first += 1 + size / 7)
      for (const std::int64_t count :
           {std::int64_t{0}, std::int64_t{1}, (size - first) / 2, size - first}) {
        std::vector<std::int64_t> found;
        shard.for_each_run(first, std::min(count, size - first),
                           [&](std::int64_t place, std::int64_t index, std::int64_t length) {
                             CHECK(place == first + static_cast<std::int64_t>(found.size()));
                             for (std::int64_t i = 0; i < length; ++i)
                               found.push_back(index + i);
                           });
        const auto begin = expected.begin() + first;
        REQUIRE(found == std::vector(begin, begin + std::min(count, size - first)));
      }
  }
}

TEST_CASE("elements of a whole tensor go to a shard and back, piece by piece") {
  for (const Shard& shard : shards) {
    INFO(to_string(shard.whole()) << " along " << shard.dimension());
    const auto expected = indices_of(shard);
    std::vector<std::int32_t> whole(static_cast<std::size_t>(element_count(shard.whole())));
    std::iota(whole.begin(), whole.end(), 0);
    for (const std::size_t piece :
         {std::size_t{1}, std::size_t{4}, std::size_t{11}, whole.size()}) {
      std::vector<std::int32_t> mine, back(whole.size(), -1);
      for (std::size_t first = 0; first < whole.size(); first += piece) {
        const std::size_t count = std::min(piece, whole.size() - first);
        const auto at = static_cast<std::int64_t>(first);
        auto elements =
            std::vector(whole.begin() + at, whole.begin() + at + static_cast<std::int64_t>(count));
        const auto picked =
            shard.pick(at, std::as_writable_bytes(std::span(elements)), sizeof(std::int32_t));
        std::vector<std::int32_t> values(picked.size() / sizeof(std::int32_t));
        if (!values.empty()) std::memcpy(values.data(), picked.data(), picked.size());
        shard.put(shard.place(at), std::as_bytes(std::span(values)), sizeof(std::int32_t), at,
                  std::as_writable_bytes(std::span(back).subspan(first, count)));
        mine.insert(mine.end(), values.begin(), values.end());
      }
      CHECK(std::vector<std::int64_t>(mine.begin(), mine.end()) == expected);
      for (std::size_t index = 0; index < whole.size(); ++index)
        REQUIRE(back[index] ==
                (std::ranges::binary_search(expected, static_cast<std::int64_t>(index))
                     ? whole[index]
                     : -1));
    }
  }
}

TEST_CASE("what is not divided is all of a tensor") {
  const Shard all;
  CHECK_FALSE(all.divided());
  CHECK(all.place(17) == 17);
  int calls = 0;
  all.for_each_run(3, 9, [&](std::int64_t place, std::int64_t index, std::int64_t count) {
    CHECK((place == 3 && index == 3 && count == 9));
    ++calls;
  });
  CHECK(calls == 1);
}

TEST_CASE("ranges that are not in the tensor are refused") {
  CHECK_THROWS_AS(Shard({4, 4}, 2, {{0, 1}}), Error);
  CHECK_THROWS_AS(Shard({4, 4}, 0, {{2, 5}}), Error);
  CHECK_THROWS_AS(Shard({4, 4}, 0, {{2, 2}}), Error);
  CHECK_THROWS_AS(Shard({4, 4}, 0, {{2, 4}, {1, 2}}), Error);
}

}  // namespace sluice::test::shard_test
