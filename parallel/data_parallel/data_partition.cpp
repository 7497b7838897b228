#include "parallel/data_parallel/data_partition.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/philox.h"

namespace sluice {
namespace {

/// Large enough for thirds written with six digits, too small for a forgotten rank.
constexpr double tolerance = 2e-6;

/// The Fisher-Yates shuffle, written here since std::shuffle draws differently from one standard
/// library to the next, and all ranks must agree.
std::vector<std::int64_t> shuffled(std::int64_t size, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const std::uint64_t key = mix_key(seed, 0x5117);
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[mix_key(key, left) % left]);
  return order;
}

double checked_sum(std::span<const double> fractions) {
  if (fractions.empty()) fail("data are divided between one rank or more, not none");
  double sum = 0;
  for (std::size_t rank = 0; rank < fractions.size(); ++rank) {
    if (!(fractions[rank] >= 0))  // rejects NaN, too
      fail(fmt::format("rank {}'s fraction of the data is {}: it must be at least 0", rank,
                       fractions[rank]));
    sum += fractions[rank];
  }
  if (!(std::abs(sum - 1) <= tolerance))
    fail(fmt::format("the fractions of the data sum to {}, not to 1: {}", sum,
                     fmt::join(fractions, " + ")));
  return sum;
}

/// Every border is rounded by itself, so that errors do not add up and the last one is the size.
std::vector<std::int64_t> borders_of(std::int64_t size, std::span<const double> fractions) {
  const double sum = checked_sum(fractions);
  std::vector<std::int64_t> borders{0};
  double before = 0;
  for (const double fraction : fractions) {
    before += fraction;
    borders.push_back(std::llround(static_cast<double>(size) * (before / sum)));
  }
  return borders;
}

void check_rank(int rank, int ranks) {
  if (rank < 0 || rank >= ranks)
    fail(fmt::format("there is no partition for rank {}: ranks are 0 to {}", rank, ranks - 1));
}

}  // namespace

DataPartitioner::DataPartitioner(std::int64_t size, std::span<const double> fractions,
                                 std::uint64_t seed) {
  if (size < 0) fail(fmt::format("{} items cannot be divided between ranks", size));
  borders_ = borders_of(size, fractions);
  order_ = shuffled(size, seed);
}

std::span<const std::int64_t> DataPartitioner::partition(int rank) const {
  check_rank(rank, partitions());
  const auto begin = static_cast<std::size_t>(borders_[static_cast<std::size_t>(rank)]);
  const auto end = static_cast<std::size_t>(borders_[static_cast<std::size_t>(rank) + 1]);
  return std::span(order_).subspan(begin, end - begin);
}

std::vector<std::int64_t> own_partition(int rank, int ranks, std::int64_t size,
                                        std::uint64_t seed) {
  if (ranks < 1) fail(fmt::format("data are divided between one rank or more, not {}", ranks));
  check_rank(rank, ranks);
  const std::vector<double> fractions(static_cast<std::size_t>(ranks), 1.0 / ranks);
  const DataPartitioner all(size, fractions, seed);
  const auto own = all.partition(rank);
  return {own.begin(), own.end()};
}

}  // namespace sluice
