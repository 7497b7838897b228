#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/dynamic_map.h"
#include "kernels/base/stochastic_rounding.h"
#include "tests/kernels/adamw_state.h"
#include "tests/support/catch.h"

namespace sluice::test::rounding_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// The average of all 2^16 outcomes.
template <class Round>
double mean_of_all(Round&& round) {
  double sum = 0;
  for (std::uint32_t random = 0; random < 0x10000; ++random)
    sum += static_cast<double>(round(static_cast<std::uint16_t>(random)));
  return sum / 0x10000;
}

/// The smallest and the largest random bits and some between, odd ones too.
constexpr std::uint16_t randoms[] = {0, 1, 15, 16, 4097, 0x7FFF, 0x8000, 0xFFEF, 0xFFF0, 0xFFFF};

template <class Map>
void check_values(int widest) {
  const std::vector<double> values = values_of_map(widest);
  REQUIRE(values.size() == static_cast<std::size_t>(2 * widest));
  CHECK(Map::decode(0) == 0.0f);
  CHECK(Map::decode(static_cast<std::uint8_t>(2 * widest - 1)) == 1.0f);
  for (std::size_t code = 1; code < values.size(); ++code) {
    const double decoded = Map::decode(static_cast<std::uint8_t>(code));
    if (std::abs(decoded - values[code]) > values[code] * 0x1p-24)
      FAIL("code " << code << " is " << decoded << ", not " << values[code]);
  }
}

/// Every code survives whatever the random bits are, and so do blocks scaled by a full fp32.
template <class Map>
void check_round_trip(int codes, int unused) {
  for (int code = 0; code < codes; ++code) {
    if (code == unused) continue;
    const float value = Map::decode(static_cast<std::uint8_t>(code));
    for (const float scale : {1.0f, 0.7654321f, 3.1e-30f, 8.3e20f}) {
      for (const std::uint16_t random : randoms) {
        const std::uint32_t back = Map::encode(value * scale * (1 / scale), random);
        INFO("scale " << scale);
        REQUIRE(back == static_cast<std::uint32_t>(code));
      }
    }
  }
}

/// Checks that of two neighbouring codes each is chosen often enough for the mean to be right.
template <class Map>
void check_means(int widest, bool to_zero) {
  const std::vector<double> values = values_of_map(widest);
  for (std::size_t low = to_zero ? 0 : 1; low + 1 < values.size(); low += low < 10 ? 1 : 7) {
    for (const double part : {0.1, 0.5, 0.8}) {
      const double gap = values[low + 1] - values[low];
      const auto x = static_cast<float>(values[low] + part * gap);
      int others = 0;
      const double mean = mean_of_all([&](std::uint16_t random) {
        const std::uint32_t code = Map::encode(x, random);
        if (code != low && code != low + 1) ++others;
        return Map::decode(static_cast<std::uint8_t>(code));
      });
      CAPTURE(low, part);
      CHECK(others == 0);
      CHECK(std::abs(mean - static_cast<double>(x)) <= gap * 0x1p-12);
    }
  }
}

}  // namespace

TEST_CASE("stochastic rounding to bf16 has the value as its mean", "[rounding]") {
  for (const float value : {1.001f, -1.0051f, 3.14159f, -2.71828e-20f, 1.7e30f, 1e-40f}) {
    const double gap = std::abs(static_cast<double>(
        std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) & 0xFFFF0000u) + 0x10000u) -
        std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xFFFF0000u)));
    CAPTURE(value);
    const double mean = mean_of_all([&](std::uint16_t random) {
      return static_cast<float>(round_stochastically(value, random));
    });
    CHECK(std::abs(mean - static_cast<double>(value)) <= gap * 1e-9);
  }
}

TEST_CASE("stochastic rounding keeps what bf16 has, and nothing finite becomes infinite",
          "[rounding]") {
  for (const std::uint16_t random : randoms) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto value = std::bit_cast<float>(bits << 16);
      const BFloat16 rounded = round_stochastically(value, random);
      if (std::isnan(value))
        REQUIRE(std::isnan(static_cast<float>(rounded)));
      else
        REQUIRE(rounded.bits == bits);
    }
    for (const float sign : {1.0f, -1.0f}) {
      for (const float value : {3.4e38f, std::numeric_limits<float>::max()}) {
        const auto rounded = static_cast<float>(round_stochastically(sign * value, random));
        CHECK(rounded == sign * std::bit_cast<float>(0x7F7F0000u));
      }
      CHECK(static_cast<float>(round_stochastically(sign * infinity, random)) == sign * infinity);
    }
    // A NaN whose only bits would be cut off.
    CHECK(std::isnan(
        static_cast<float>(round_stochastically(std::bit_cast<float>(0x7F800001u), random))));
  }
}

TEST_CASE("the bits of stochastic rounding are uniform over elements and over keys", "[rounding]") {
  constexpr int draws = 1 << 16;
  constexpr double deviation = 0.2886751 / 256;  // of a mean of 2^16 uniform numbers
  const auto check_mean = [](auto&& bits) {
    double low = 0, high = 0, product = 0;
    for (int i = 0; i < draws; ++i) {
      const double a = (bits(i) & 0xFFFFu) / 65536.0 - 0.5, b = (bits(i) >> 16) / 65536.0 - 0.5;
      low += a;
      high += b;
      product += a * b;
    }
    CHECK(std::abs(low / draws) < 5 * deviation);
    CHECK(std::abs(high / draws) < 5 * deviation);
    // The halves have nothing to do with each other: one rounds m, the other v.
    CHECK(std::abs(product / draws) < 5 * deviation * 0.2886751);
  };
  for (const std::int64_t first : {std::int64_t{0}, (std::int64_t{1} << 32) - 100}) {
    for (const std::uint64_t key : {0u, 1u, 77u}) {
      check_mean([&](int i) { return RoundingBits(key)(first + i); });
      // Pairs the bits of an element and its neighbour, and of a step and the next.
      check_mean([&](int i) {
        return (RoundingBits(key)(first + i) & 0xFFFFu) | (RoundingBits(key)(first + i + 1) << 16);
      });
      check_mean([&](int i) {
        return (RoundingBits(key)(first + i) & 0xFFFFu) | (RoundingBits(key + 1)(first + i) << 16);
      });
    }
    check_mean([&](int i) { return RoundingBits(static_cast<std::uint64_t>(i))(first); });
  }
  // The upper half of an element's position counts, and is carried into.
  constexpr std::int64_t wrap = std::int64_t{1} << 32;
  CHECK(RoundingBits(1)(5) != RoundingBits(1)(5 + wrap));
  for (const std::uint32_t i : {0u, 1u, 2u, 3u, 4u})
    CHECK(RoundingBits(1)(wrap - 2, i) == RoundingBits(1)(wrap - 2 + i));
}

TEST_CASE("the values of the dynamic maps", "[rounding]") {
  check_values<SignedMap>(64);
  check_values<PositiveMap>(128);
  for (int code = 1; code < 128; ++code)
    CHECK(SignedMap::decode(static_cast<std::uint8_t>(code | 0x80)) ==
          -SignedMap::decode(static_cast<std::uint8_t>(code)));
}

TEST_CASE("every code of the dynamic maps survives a round trip", "[rounding]") {
  check_round_trip<SignedMap>(256, 0x80);
  check_round_trip<PositiveMap>(256, -1);
}

TEST_CASE("the dynamic maps round without a bias", "[rounding]") {
  check_means<SignedMap>(64, true);
  check_means<PositiveMap>(128, false);
  // The sign changes nothing else.
  for (const std::uint16_t random : randoms)
    CHECK(SignedMap::encode(-0.0123f, random) == (SignedMap::encode(0.0123f, random) | 0x80));
}

TEST_CASE("the ends of the dynamic maps", "[rounding]") {
  for (const std::uint16_t random : randoms) {
    // Only 0 becomes 0 where it is for a denominator.
    for (const float x : {1e-7f, 1e-8f, 1e-20f, 1e-44f})
      CHECK(PositiveMap::encode(x, random) == 1);
    CHECK(PositiveMap::encode(0.0f, random) == 0);
    CHECK(SignedMap::encode(0.0f, random) == 0);
    CHECK(SignedMap::encode(-0.0f, random) == 0);
    // Never the unused code.
    CHECK((SignedMap::encode(-1e-7f, random) == 0 || SignedMap::encode(-1e-7f, random) == 0x81));
    for (const float x : {1.0f, 1.0000001f, 2.0f, infinity, nan}) {
      CHECK(PositiveMap::encode(x, random) == 255);
      CHECK(SignedMap::encode(x, random) == 127);
    }
    CHECK(SignedMap::encode(-infinity, random) == 255);
  }
}

}  // namespace sluice::test::rounding_test
