#include "kernels/rotary.h"

#include <cmath>
#include <numbers>

#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::rotary_test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

/// Angles of `width` columns that turn by base^(-2 i / width) a position, as in the paper.
RotaryAngles angles_of(int width, RotaryPairs pairs, long double base = 10000) {
  RotaryAngles angles{.width = width, .pairs = pairs};
  for (int i = 0; i < width / 2; ++i) {
    const long double frequency = std::pow(base, -2.0L * i / width);
    angles.turns[static_cast<std::size_t>(i)] = static_cast<std::uint64_t>(
        std::ldexp(frequency / (2 * std::numbers::pi_v<long double>), 64));
  }
  return angles;
}

/// Rotates by definition.
Values rotated(Values values, std::int64_t length, std::int64_t columns, int heads,
               std::int64_t head_width, RotaryPairs pairs, std::int64_t width,
               std::int64_t first_position) {
  for (std::size_t row = 0; row < values.size() / static_cast<std::size_t>(columns); ++row)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t i = 0; i < width / 2; ++i) {
        const long double position =
            static_cast<long double>(first_position) +
            static_cast<long double>(row % static_cast<std::size_t>(length));
        const long double angle =
            position * std::pow(10000.0L, -2.0L * static_cast<long double>(i) /
                                              static_cast<long double>(width));
        const bool halves = pairs == RotaryPairs::halves;
        const std::size_t start =
            row * static_cast<std::size_t>(columns) + static_cast<std::size_t>(head * head_width);
        double& a = values[start + static_cast<std::size_t>(halves ? i : 2 * i)];
        double& b = values[start + static_cast<std::size_t>(halves ? i + width / 2 : 2 * i + 1)];
        const double cosine = static_cast<double>(std::cos(angle));
        const double sine = static_cast<double>(std::sin(angle));
        const double before = a;
        a = before * cosine - b * sine;
        b = before * sine + b * cosine;
      }
  return values;
}

TEST_CASE("rotary positions agree with their definition, and turn back", "[rotary]") {
  const struct {
    std::int64_t batch, length;
    int heads, unchanged;  ///< heads that are rotated, and behind them
    std::int64_t head_width;
    int width;
    std::int64_t first_position;
  } cases[] = {{1, 1, 1, 0, 2, 2, 0},     {2, 5, 3, 1, 8, 8, 0},     {2, 33, 2, 2, 20, 6, 7},
               {1, 17, 5, 3, 64, 64, 99}, {1, 3, 2, 1, 256, 256, 0}, {1, 4, 1, 1, 64, 64, 1000000}};
  for (const DType dtype : dtypes)
    for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved})
      for (const auto& c : cases) {
        CAPTURE(name_of(dtype), c.length, c.heads, c.head_width, c.width, c.first_position,
                pairs == RotaryPairs::halves);
        const std::int64_t columns = (c.heads + c.unchanged) * c.head_width;
        Array rows(dtype, random_values(c.batch * c.length * columns, 1));
        const Values before = rows.values();
        Rotary op{.rows = rows.view({c.batch, c.length, columns}),
                  .heads = c.heads,
                  .head_width = static_cast<int>(c.head_width),
                  .angles = angles_of(c.width, pairs),
                  .first_position = c.first_position};
        launch_cpu(op);
        // Far out, the definition's own angle has the round-off of its size.
        const double slack = 1 + static_cast<double>(c.first_position) / 1e4;
        CHECK(relative_l2(rows.values(), rotated(before, c.length, columns, c.heads, c.head_width,
                                                 pairs, c.width, c.first_position)) <=
              slack * tolerance_of(dtype));
        op.inverse = true;
        launch_cpu(op);
        CHECK(relative_l2(rows.values(), before) <= 2 * tolerance_of(dtype));
      }
}

TEST_CASE("a product of rotated rows depends on the distance of their positions alone",
          "[rotary]") {
  const std::int64_t width = 64;
  const Values q = random_values(width, 1), k = random_values(width, 2);
  for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved}) {
    const auto product = [&](std::int64_t query, std::int64_t key) {
      const auto at = [&](const Values& values, std::int64_t position) {
        Array row(DType::f64, values);
        launch_cpu(Rotary{.rows = row.view({1, 1, width}),
                          .heads = 1,
                          .head_width = static_cast<int>(width),
                          .angles = angles_of(static_cast<int>(width), pairs),
                          .first_position = position});
        return row.values();
      };
      const Values a = at(q, query), b = at(k, key);
      double sum = 0;
      for (std::size_t i = 0; i < a.size(); ++i)
        sum += a[i] * b[i];
      return sum;
    };
    CHECK(product(9, 2) == Approx(product(7, 0)).epsilon(1e-12));
    CHECK(product(131071, 131064) == Approx(product(7, 0)).epsilon(1e-12));
    CHECK(std::abs(product(9, 3) - product(7, 0)) > 1e-3);
  }
}

TEST_CASE("rotary positions do not depend on the number of threads", "[rotary]") {
  CHECK(same_with_any_threads([] {
    Array rows(DType::bf16, random_values(2 * 70 * 6 * 16, 1));
    launch_cpu(Rotary{.rows = rows.view({2, 70, 6 * 16}),
                      .heads = 4,
                      .head_width = 16,
                      .angles = angles_of(16, RotaryPairs::halves)});
    return std::array{rows.bytes()};
  }));
}

}  // namespace
}  // namespace sluice::test::rotary_test
