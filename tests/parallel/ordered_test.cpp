// The order of a reduction: over ranks 0, 1, 2..., rounded once, however it is done.
#include <limits>

#include "parallel/comm/backend/host_backend.h"
#include "parallel/comm/backend/ordered_reduce.h"
#include "tests/parallel/battery.h"
#include "tests/parallel/checked_ranks.h"
#include "tests/support/catch.h"

namespace sluice::test::ordered_test {

namespace {

template <class T>
std::vector<T> reduce_by_value(const std::vector<std::vector<T>>& contributions, ReduceOp op) {
  std::vector<const std::byte*> in;
  for (const auto& each : contributions)
    in.push_back(reinterpret_cast<const std::byte*>(each.data()));
  std::vector<T> out(contributions.front().size());
  ordered_reduce(view_of(out), in, op);
  return out;
}

template <class T>
std::vector<T> rounded(std::initializer_list<float> values) {
  std::vector<T> out;
  for (const float value : values)
    out.push_back(static_cast<T>(value));
  return out;
}

}  // namespace

// The tests of the order could not fail if this did not hold.
TEMPLATE_TEST_CASE("another order of the ranks gives other bits", "", float, double, BFloat16) {
  for (const int ranks : {3, 4, 8}) {
    auto order = in_order(ranks);
    const auto wanted = reduced<TestType>(ranks, 1000, 1);
    std::ranges::rotate(order, order.begin() + 1);
    CHECK_FALSE(same_bits(reduced<TestType>(order, 1000, 1, ReduceOp::sum), wanted));
    order = in_order(ranks);
    std::ranges::reverse(order);
    CHECK_FALSE(same_bits(reduced<TestType>(order, 1000, 1, ReduceOp::sum), wanted));
  }
}

TEMPLATE_TEST_CASE("rounding after every addition gives other bits", "", BFloat16, Half) {
  std::vector<TestType> sums = numbers<TestType>(0, 1000, 1);
  for (int rank = 1; rank < 3; ++rank) {
    const auto values = numbers<TestType>(rank, 1000, 1);
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] = static_cast<TestType>(static_cast<float>(sums[i]) + static_cast<float>(values[i]));
  }
  CHECK_FALSE(same_bits(sums, reduced<TestType>(3, 1000, 1)));
}

TEST_CASE("a reduction in pieces, beside others and waited for in any order is the same",
          "[threads]") {
  for (const int ranks : {1, 2, 3, 8})
    check_ranks(ranks, [](Communicator& c) {
      for (const std::size_t count : {5U, 4095U, 4096U, 4097U, 30000U})
        check_cuts(c, count);
    });
}

TEST_CASE("ordered_reduce by value") {
  // 1e8 + 1 is 1e8 in f32, so that these three tell every order apart from the ranks'.
  CHECK(reduce_by_value<float>({{1e8F}, {1.F}, {-1e8F}}, ReduceOp::sum)[0] == 0.F);
  CHECK(reduce_by_value<float>({{1e8F}, {-1e8F}, {1.F}}, ReduceOp::sum)[0] == 1.F);
  CHECK(reduce_by_value<double>({{1e8}, {1.}, {-1e8}}, ReduceOp::sum)[0] == 1.);
  CHECK(reduce_by_value<std::int32_t>({{1, -5}, {2, 7}, {4, 1}}, ReduceOp::sum) ==
        std::vector<std::int32_t>{7, 3});
  CHECK(reduce_by_value<std::int32_t>({{1, -5}, {2, -7}, {-4, -6}}, ReduceOp::maximum) ==
        std::vector<std::int32_t>{2, -5});
  CHECK(reduce_by_value<float>({{3.F}}, ReduceOp::sum)[0] == 3.F);
  CHECK(reduce_by_value<float>({{}, {}}, ReduceOp::sum).empty());
}

TEMPLATE_TEST_CASE("numbers of 16 bits are rounded once", "", BFloat16, Half) {
  // Half a unit in the last place, twice: rounded each time it is lost, rounded once it counts.
  const float one_bit = std::is_same_v<TestType, Half> ? 0x1p-10F : 0x1p-7F;
  const auto sums = reduce_by_value<TestType>(
      {rounded<TestType>({1.F, 1.F}), rounded<TestType>({one_bit / 2, one_bit / 2}),
       rounded<TestType>({one_bit / 2, 0.F})},
      ReduceOp::sum);
  CHECK(static_cast<float>(sums[0]) == 1.F + one_bit);
  CHECK(static_cast<float>(sums[1]) == 1.F);  // the tie goes to the even
}

TEST_CASE("a NaN of any rank is the maximum and the sum") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t rank = 0; rank < 3; ++rank)
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::maximum}) {
      std::vector<std::vector<float>> in{{1.F, 4.F}, {2.F, 5.F}, {3.F, 6.F}};
      in[rank][0] = nan;
      const auto out = reduce_by_value<float>(in, op);
      CHECK(std::isnan(out[0]));
      CHECK(out[1] == (op == ReduceOp::sum ? 15.F : 6.F));
    }
}

TEST_CASE("ordered_reduce writes over any of its contributions") {
  constexpr std::size_t count = 300001;  // several tiles and pieces, the last of them not full
  const auto wanted = reduced<float>(3, count, 5);
  for (std::size_t target = 0; target < 3; ++target) {
    std::vector<std::vector<float>> in;
    std::vector<const std::byte*> addresses;
    for (int rank = 0; rank < 3; ++rank)
      in.push_back(numbers<float>(rank, count, 5));
    for (const auto& each : in)
      addresses.push_back(reinterpret_cast<const std::byte*>(each.data()));
    ordered_reduce(view_of(in[target]), addresses, ReduceOp::sum);
    CHECK(same_bits(in[target], wanted));
    for (std::size_t other = 0; other < 3; ++other)
      if (other != target)
        CHECK(same_bits(in[other], numbers<float>(static_cast<int>(other), count, 5)));
  }
}

TEST_CASE("ordered_reduce refuses what is no number") {
  std::byte bytes[4]{};
  const std::byte* in[]{bytes, bytes};
  CHECK_THROWS_WITH(ordered_reduce(View(bytes, DType::u8, {4}), in, ReduceOp::sum), Contains("u8"));
  CHECK_THROWS_WITH(ordered_reduce(View(bytes, DType::i16, {2}), in, ReduceOp::sum),
                    Contains("i16"));
}

TEST_CASE("even_parts cover an array in order, cut at units, of about the same size") {
  const auto parts = [](std::int64_t count, int pieces, std::int64_t unit) {
    std::vector<std::int64_t> ends;
    for (const Part& part : even_parts(count, pieces, unit)) {
      ends.push_back(part.offset);
      ends.push_back(part.count);
    }
    return ends;
  };
  using Flat = std::vector<std::int64_t>;
  CHECK(parts(10, 3, 1) == Flat{0, 3, 3, 3, 6, 4});
  CHECK(parts(200, 2, 64) == Flat{0, 128, 128, 72});
  CHECK(parts(100, 1, 64) == Flat{0, 100});
  CHECK(parts(0, 2, 64) == Flat{0, 0, 0, 0});
  CHECK(parts(64, 2, 64) == Flat{0, 0, 0, 64});
  for (const std::int64_t count : {0, 1, 63, 64, 65, 1000, 100003})
    for (const int pieces : {1, 2, 3, 7, 8, 100})
      for (const std::int64_t unit : {1, 64, 1000}) {
        INFO(count << " in " << pieces << " at units of " << unit);
        std::int64_t at = 0, least = count, most = 0;
        for (const Part& part : even_parts(count, pieces, unit)) {
          REQUIRE(part.count >= 0);
          REQUIRE(part.offset == at);
          if (part.count > 0) REQUIRE(part.offset % unit == 0);
          at += part.count;
          least = std::min(least, part.count);
          most = std::max(most, part.count);
        }
        REQUIRE(at == count);
        CHECK(most - least < 2 * unit);
      }
}

}  // namespace sluice::test::ordered_test
