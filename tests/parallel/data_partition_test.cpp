#include "parallel/data_parallel/data_partition.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/catch.h"
#include "tests/support/error_message.h"

namespace sluice::test::data_partition_test {
namespace {

using Indices = std::vector<std::int64_t>;

std::vector<double> equal_fractions(int ranks) {
  return std::vector<double>(static_cast<std::size_t>(ranks), 1.0 / ranks);
}

/// All partitions, one after another.
Indices joined(const DataPartitioner& partitioner) {
  Indices all;
  for (int rank = 0; rank < partitioner.partitions(); ++rank) {
    const auto part = partitioner.partition(rank);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

/// Requires each of 0 .. size-1 once, so that nothing is lost or in two partitions. Takes a copy.
void require_each_once(Indices all, std::int64_t size) {
  Indices expected(static_cast<std::size_t>(size));
  std::iota(expected.begin(), expected.end(), std::int64_t{0});
  std::ranges::sort(all);
  REQUIRE(all == expected);
}

std::string message_of(std::int64_t size, const std::vector<double>& fractions) {
  return error_message([&] { DataPartitioner(size, fractions, 1); });
}

}  // namespace

TEST_CASE("equal partitions of the data are disjoint, cover it and differ by one item at most") {
  for (const std::int64_t size : {0, 1, 7, 64, 128, 512, 1000})
    for (const int ranks : {1, 2, 3, 4, 8}) {
      INFO(size << " items, " << ranks << " ranks");
      const DataPartitioner partitioner(size, equal_fractions(ranks), 42);
      REQUIRE(partitioner.partitions() == ranks);
      REQUIRE(partitioner.size() == size);
      require_each_once(joined(partitioner), size);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto part = partitioner.partition(rank);
        const auto count = static_cast<std::int64_t>(part.size());
        REQUIRE(count >= size / ranks);
        REQUIRE(count <= (size + ranks - 1) / ranks);
        // A rank alone arrives at the same items as one that knows all partitions.
        REQUIRE(own_partition(rank, ranks, size, 42) == Indices(part.begin(), part.end()));
      }
    }
}

TEST_CASE("data that divide exactly do so, whatever the sum of fractions is rounded to") {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    const DataPartitioner partitioner(3 * ranks, equal_fractions(ranks), 5);
    for (int rank = 0; rank < ranks; ++rank) {
      INFO("rank " << rank << " of " << ranks);
      REQUIRE(partitioner.partition(rank).size() == 3);
    }
  }
}

TEST_CASE("partitions have their fractions of the data to less than one item") {
  const std::vector<std::vector<double>> choices{
      {0.7, 0.2, 0.1},
      {0.5, 0.25, 0.125, 0.125},
      {0, 1},
      {1, 0, 0},
      {0.5, 0, 0.5, 0},
      {0.333333, 0.333333, 0.333333},  // as people write thirds
      {1.0}};
  for (const std::int64_t size : {0, 1, 7, 64, 128, 512, 1000})
    for (const auto& fractions : choices) {
      const DataPartitioner partitioner(size, fractions, 3);
      require_each_once(joined(partitioner), size);
      for (std::size_t rank = 0; rank < fractions.size(); ++rank) {
        INFO(size << " items, rank " << rank << " gets " << fractions[rank]);
        const auto count =
            static_cast<double>(partitioner.partition(static_cast<int>(rank)).size());
        CHECK(std::abs(count - fractions[rank] * static_cast<double>(size)) < 1.001);
        if (fractions[rank] == 0) CHECK(count == 0);
      }
    }
  const DataPartitioner course(1000, choices[0], 3);
  CHECK(course.partition(0).size() == 700);
  CHECK(course.partition(1).size() == 200);
  CHECK(course.partition(2).size() == 100);
  // Of a million items the thirds above would leave out one.
  const DataPartitioner thirds(1'000'000, choices[5], 3);
  CHECK(thirds.size() == 1'000'000);
  CHECK(thirds.partition(0).size() == 333'333);
  CHECK(thirds.partition(1).size() == 333'334);
  CHECK(thirds.partition(2).size() == 333'333);
  CHECK((joined(thirds) == joined(DataPartitioner(1'000'000, choices[6], 3))));
}

TEST_CASE("the order of the data is a function of the seed, whoever asks and however it is cut") {
  const auto order = [](std::uint64_t seed, int ranks, std::int64_t size = 1000) {
    return joined(DataPartitioner(size, equal_fractions(ranks), seed));
  };
  CHECK(order(7, 4) == order(7, 4));
  CHECK(order(7, 4) == order(7, 1));
  CHECK(order(7, 4) == order(7, 3));
  CHECK(order(7, 4) != order(8, 4));
  CHECK(order(0, 4) != order(1, 4));
  // The same on every machine: ranks of one job may run on unlike ones. Worked out in Python.
  CHECK(order(7, 1, 10) == Indices{0, 6, 5, 7, 2, 4, 8, 9, 3, 1});

  // Shuffled, not only turned or cut up: a random order has about one of each.
  const Indices first = order(7, 1), other = order(8, 1);
  int unmoved = 0, follow = 0, as_other = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    unmoved += first[i] == static_cast<std::int64_t>(i);
    follow += i > 0 && first[i] == first[i - 1] + 1;
    as_other += first[i] == other[i];
  }
  CHECK(unmoved < 12);
  CHECK(follow < 12);
  CHECK(as_other < 12);
}

TEST_CASE("every item comes to every place of the order about equally often") {
  constexpr std::size_t size = 5;
  constexpr int seeds = 4000;
  std::array<std::array<int, size>, size> counts{};
  for (int seed = 0; seed < seeds; ++seed) {
    const auto order = own_partition(0, 1, size, static_cast<std::uint64_t>(seed));
    for (std::size_t place = 0; place < size; ++place)
      ++counts[place][static_cast<std::size_t>(order[place])];
  }
  // 800 expected, with a standard deviation of 25.
  for (const auto& place : counts)
    for (const int count : place) {
      CHECK(count > 650);
      CHECK(count < 950);
    }
}

TEST_CASE("data that cannot be divided as asked are an error that names the values") {
  CHECK_THAT(message_of(10, {0.5, 0.4}), Contains("0.9") && Contains("0.5 + 0.4"));
  CHECK_THAT(message_of(10, {0.5, 0.5, 0.5}), Contains("1.5"));
  CHECK_THAT(message_of(10, {0.333, 0.333, 0.333}), Contains("0.999"));
  CHECK_THAT(message_of(10, {0, 0}), Contains("sum to 0"));
  CHECK_THAT(message_of(10, {1.5, -0.5}), Contains("rank 1") && Contains("-0.5"));
  CHECK_THAT(message_of(10, {std::numeric_limits<double>::quiet_NaN(), 1}),
             Contains("rank 0") && Contains("nan"));
  CHECK_THAT(message_of(10, {std::numeric_limits<double>::infinity()}), Contains("inf"));
  CHECK_THAT(message_of(10, {}), Contains("one rank or more"));
  CHECK_THAT(message_of(-3, {1}), Contains("-3 items"));
  const DataPartitioner partitioner(10, equal_fractions(4), 1);
  for (const int rank : {-1, 4, 100})
    CHECK_THAT(error_message([&] { partitioner.partition(rank); }),
               Contains("rank " + std::to_string(rank) + ":") && Contains("0 to 3"));
  for (const int rank : {-1, 2})
    CHECK_THAT(error_message([&] { own_partition(rank, 2, 10, 1); }),
               Contains("rank " + std::to_string(rank) + ":") && Contains("0 to 1"));
  for (const int ranks : {0, -2})
    CHECK_THAT(error_message([&] { own_partition(0, ranks, 10, 1); }),
               Contains("not " + std::to_string(ranks)));
}

}  // namespace sluice::test::data_partition_test
