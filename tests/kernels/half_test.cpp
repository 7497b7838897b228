#include "kernels/base/half.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "engine/rng.h"
#include "kernels/base/philox.h"
#include "kernels/cpu/math.h"
#include "kernels/elementwise.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::half_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class T>
T from_bits(std::uint32_t bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

/// Widens and narrows every pattern; a NaN must stay one, with its sign.
template <class T>
void check_round_trip() {
  int nans = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = static_cast<float>(from_bits<T>(bits));
    const T narrow(wide);
    if (std::isnan(wide)) {
      ++nans;
      if (!std::isnan(static_cast<float>(narrow)) || ((narrow.bits ^ bits) & 0x8000u) != 0)
        FAIL("NaN " << bits << " became " << narrow.bits);
    } else if (narrow.bits != bits) {
      FAIL(bits << " became " << narrow.bits);
    }
  }
  CHECK(nans == (std::is_same_v<T, Half> ? 2 * 1023 : 2 * 127));
}

TEST_CASE("every 16-bit pattern survives a round trip", "[half]") {
  check_round_trip<BFloat16>();
  check_round_trip<Half>();
}

/// Returns the value of a bit pattern by the format's definition, without a cast.
double meaning(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const std::uint32_t exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
  const std::uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  // The pattern of infinity counts as the next power of two: that is where rounding overflows.
  const double value = exponent == 0
                           ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                           : std::ldexp(mantissa + (1u << mantissa_bits),
                                        static_cast<int>(exponent) - bias - mantissa_bits);
  return (bits & 0x8000u) != 0 ? -value : value;
}

/// Checks the middle between every two neighbours and the fp32 numbers beside it, both signs.
template <class T, class Round>
void check_rounding(int exponent_bits, int mantissa_bits, bool half_away, Round&& round) {
  const std::uint32_t infinite = ((1u << exponent_bits) - 1) << mantissa_bits;
  for (std::uint32_t low = 0; low < infinite; ++low) {
    const double below = meaning(low, exponent_bits, mantissa_bits);
    const double above = meaning(low + 1, exponent_bits, mantissa_bits);
    if (low + 1 < infinite)
      REQUIRE(static_cast<double>(static_cast<float>(from_bits<T>(low))) == below);
    const auto middle = static_cast<float>((below + above) / 2);
    REQUIRE(static_cast<double>(middle) == (below + above) / 2);
    const std::uint32_t tie = half_away || (low & 1u) != 0 ? low + 1 : low;
    const struct {
      float value;
      std::uint32_t expected;
    } cases[] = {{middle, tie},
                 {std::nextafter(middle, 0.0f), low},
                 {std::nextafter(middle, infinity), low + 1},
                 {std::nextafter(static_cast<float>(below), infinity), low},
                 {std::nextafter(static_cast<float>(above), 0.0f), low + 1}};
    for (const auto& [value, expected] : cases) {
      if (round(value).bits != expected) FAIL(value << " became " << round(value).bits);
      if (round(-value).bits != (expected | 0x8000u))
        FAIL(-value << " became " << round(-value).bits);
    }
  }
  CHECK(round(infinity).bits == infinite);
  CHECK(round(-infinity).bits == (infinite | 0x8000u));
  CHECK(round(std::numeric_limits<float>::max()).bits == infinite);
  CHECK(round(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(round(-0.0f).bits == 0x8000u);
  // NaNs whose payload lies only in bits that are cut off must not turn into infinity.
  for (const std::uint32_t bits : {0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FC00000u})
    CHECK(std::isnan(static_cast<float>(round(std::bit_cast<float>(bits)))));
}

TEST_CASE("conversion to 16 bits rounds to nearest", "[half]") {
  SECTION("bf16, ties to even") {
    check_rounding<BFloat16>(8, 7, false, [](float x) { return BFloat16(x); });
  }
  SECTION("bf16, ties away from zero") {
    check_rounding<BFloat16>(8, 7, true, [](float x) {
      BFloat16 rounded;
      rounded.bits = BFloat16::round_half_away(x);
      return rounded;
    });
  }
  SECTION("f16") {
    check_rounding<Half>(5, 10, false, [](float x) { return Half(x); });
  }
}

TEST_CASE("add, fill and cast are exact up to one rounding", "[half]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t size : {1, 33, 5003}) {
      test::Array a(dtype, test::random_values(size, 1)), b(dtype, test::random_values(size, 2)),
          out(dtype, size);
      test::Values sum = a.values();
      const test::Values second = b.values();
      for (std::size_t i = 0; i < sum.size(); ++i)
        sum[i] += second[i];
      const test::Array exact(dtype, sum);
      launch_cpu(Add{.out = out.flat(), .a = a.flat(), .b = b.flat()});
      CHECK(out.bytes() == exact.bytes());
      launch_cpu(Add{.out = a.flat(), .a = a.flat(), .b = b.flat()});
      CHECK(a.bytes() == exact.bytes());
      launch_cpu(Fill{.out = out.flat(), .value = -0.75});
      CHECK(out.values() == test::Values(static_cast<std::size_t>(size), -0.75));
      for (const DType to : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
        CAPTURE(name_of(dtype), name_of(to));
        test::Array cast(to, size);
        launch_cpu(Cast{.out = cast.flat(), .in = b.flat()});
        CHECK(cast.bytes() == test::Array(to, second).bytes());
      }
    }
  }
  test::Array tie(DType::f32, test::Values{1 + 0x1p-8, -1 - 0x1p-8, 1 + 3 * 0x1p-8}),
      out(DType::bf16, 3);
  launch_cpu(Cast{.out = out.flat(), .in = tie.flat()});
  CHECK(out.values() == test::Values{1, -1, 1 + 0x1p-6});
  launch_cpu(Cast{.out = out.flat(), .in = tie.flat(), .half_away = true});
  CHECK(out.values() == test::Values{1 + 0x1p-7, -1 - 0x1p-7, 1 + 0x1p-6});
}

TEST_CASE("fast_exp stays within 1.5 ulp of exp", "[half]") {
  // An assertion for each of so many numbers would take far longer than the number.
  double worst = 0;
  int too_large = 0, too_small = 0;
  const std::uint32_t stride = test::by_form(2111U, 211U);
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    for (std::uint32_t bits = 0; bits < 0x7F800000u; bits += stride) {
      const auto x = std::bit_cast<float>(bits | sign);
      const double exact = std::exp(static_cast<double>(x));
      const float fast = cpu::fast_exp(x);
      if (exact < std::numeric_limits<float>::min() * (1 + 1e-6)) {
        too_small += !(fast >= 0);
        too_large += !(fast <= std::numeric_limits<float>::min() * 1.00001f);
      } else if (exact > std::numeric_limits<float>::max() * (1.0 - 1e-5)) {
        too_small += !(fast > std::numeric_limits<float>::max() * 0.9999f);
      } else {
        const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
        worst = std::max(worst, std::abs(fast - exact) / ulp);
      }
    }
  }
  CAPTURE(worst);
  CHECK(worst <= 1.5);
  CHECK(too_large == 0);
  CHECK(too_small == 0);
  CHECK(cpu::fast_exp(0.0f) == 1.0f);
  CHECK(cpu::fast_exp(-infinity) == 0.0f);
  CHECK(cpu::fast_exp(-200.0f) == 0.0f);
  CHECK(cpu::fast_exp(infinity) == infinity);
  CHECK(cpu::fast_exp(89.0f) == infinity);
  CHECK(std::isnan(cpu::fast_exp(nan)));
  CHECK(cpu::fast_exp(1.25) == std::exp(1.25));
}

TEST_CASE("fast_tanh stays within 2e-7 of tanh", "[half]") {
  double worst = 0;
  int beyond = 0;
  for (int i = -1'200'000; i <= 1'200'000; ++i) {
    const float x = static_cast<float>(i) * 1e-5f;
    worst = std::max(worst, std::abs(cpu::fast_tanh(x) - std::tanh(static_cast<double>(x))));
    beyond += !(std::abs(cpu::fast_tanh(x)) <= 1.0f);
  }
  CAPTURE(worst);
  CHECK(worst < 2e-7);
  CHECK(beyond == 0);
  CHECK(cpu::fast_tanh(infinity) == 1.0f);
  CHECK(cpu::fast_tanh(-infinity) == -1.0f);
  CHECK(cpu::fast_tanh(1e30f) == 1.0f);
  CHECK(std::isnan(cpu::fast_tanh(nan)));
  CHECK(cpu::fast_tanh(0.3) == std::tanh(0.3));
}

TEST_CASE("philox gives the published answers", "[half]") {
  using Words = std::array<std::uint32_t, 4>;
  // Known-answer tests of Random123 for philox4x32-10.
  STATIC_REQUIRE(philox(0, 0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  STATIC_REQUIRE(philox(~0ull, ~0ull, ~0ull) ==
                 Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  STATIC_REQUIRE(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e) ==
                 Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  // The first outputs of splitmix64 from state 0.
  STATIC_REQUIRE(mix_key(0, 0) == 0xE220A8397B1DCDAF);
  STATIC_REQUIRE(mix_key(0, 1) == 0x6E789E6AA1B965F4);
  STATIC_REQUIRE(mix_key(0, 2) == 0x06C45D188009454F);
}

TEST_CASE("random keys tell seeds and names apart", "[half]") {
  CHECK(random_key(1, "wte") == random_key(1, "wte"));
  CHECK(random_key(1, "wte") != random_key(2, "wte"));
  CHECK(random_key(1, "wte") != random_key(1, "wpe"));
  CHECK(random_key(1, "") != random_key(1, std::string_view("\0", 1)));
  const DropoutSource source{.seed = 1, .step = 2, .first_sample = 24, .probability = 0.25f};
  const auto key = source.mask(3).key;
  CHECK(source.mask(3).first_sample == 24);
  CHECK(source.mask(3).probability == 0.25f);
  CHECK(source.mask(4).key != key);
  CHECK(DropoutSource{.seed = 1, .step = 3, .probability = 0.25f}.mask(3).key != key);
  CHECK(DropoutSource{.seed = 2, .step = 2, .probability = 0.25f}.mask(3).key != key);
  CHECK(DropoutSource{.seed = 2, .step = 1, .probability = 0.25f}.mask(3).key != key);
  // Ranks of one step differ in first_sample only: the same stream of masks.
  CHECK(DropoutSource{.seed = 1, .step = 2, .probability = 0.25f}.mask(3).key == key);
  CHECK_FALSE(DropoutSource{}.mask(0).active());
}

TEST_CASE("uniform numbers fill the range from 0 to 1 evenly", "[half]") {
  const auto key = random_key(5, "uniform");
  constexpr std::uint64_t count = 200'000;
  std::array<int, 16> bins{};
  for (std::uint64_t i = 0; i < count; ++i) {
    const double u = uniform(key, i);
    REQUIRE(u >= 0);
    REQUIRE(u < 1);
    ++bins[static_cast<std::size_t>(u * 16)];
  }
  double chi_squared = 0;
  for (const int seen : bins)
    chi_squared += (seen - count / 16.0) * (seen - count / 16.0) / (count / 16.0);
  CHECK(chi_squared < 45);  // 15 degrees of freedom: one in 10,000 exceeds 44.3
  CHECK(uniform(key, 7) == uniform(key, 7));
  CHECK(uniform(key, 7) != uniform(key, 8));
}

TEST_CASE("fill_normal is normal, and any split gets the same numbers", "[half]") {
  const auto key = random_key(5, "normal");
  std::vector<float> values(400'001);
  fill_normal(key, 0, 1, values);
  double moment[5] = {};
  for (const float value : values)
    for (int power = 1; power <= 4; ++power)
      moment[power] += std::pow(value, power);
  const auto count = static_cast<double>(values.size());
  // Four standard errors of each moment: sqrt(1, 2, 15, 96 / n).
  CHECK(std::abs(moment[1] / count) < 4 * std::sqrt(1 / count));
  CHECK(std::abs(moment[2] / count - 1) < 4 * std::sqrt(2 / count));
  CHECK(std::abs(moment[3] / count) < 4 * std::sqrt(15 / count));
  CHECK(std::abs(moment[4] / count - 3) < 4 * std::sqrt(96 / count));
  double lag[5] = {};
  for (std::size_t i = 4; i < values.size(); ++i)
    for (std::size_t d = 1; d <= 4; ++d)
      lag[d] += static_cast<double>(values[i]) * static_cast<double>(values[i - d]);
  for (int d = 1; d <= 4; ++d)
    CHECK(std::abs(lag[d] / count) < 4 * std::sqrt(1 / count));

  std::vector<float> parts(1000);
  std::size_t begin = 0;
  for (std::size_t size = 1; begin < parts.size(); size = size * 2 % 37 + 1) {
    const std::size_t taken = std::min(size, parts.size() - begin);
    fill_normal(key, begin, 1, std::span(parts).subspan(begin, taken));
    begin += taken;
  }
  CHECK(std::equal(parts.begin(), parts.end(), values.begin()));
  std::vector<float> scaled(1000);
  fill_normal(key, 0, 0.5, scaled);
  for (std::size_t i = 0; i < scaled.size(); ++i)
    REQUIRE(scaled[i] == Approx(0.5 * static_cast<double>(values[i])).epsilon(1e-6));
  fill_normal(random_key(6, "normal"), 0, 1, parts);
  CHECK(parts[0] != values[0]);
}

}  // namespace
}  // namespace sluice::test::half_test
