#include "kernels/quantized.h"

#include <algorithm>
#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::quantized_test {
namespace {

/// A matrix and its codes and scales.
struct Rounded {
  std::int64_t rows, columns;
  Array in, codes, scales;

  Rounded(std::int64_t row_count, std::int64_t column_count, const Values& values)
      : rows(row_count),
        columns(column_count),
        in(DType::f32, values),
        codes(DType::i8, row_count * column_count),
        scales(DType::f16, row_count * quantized_blocks(column_count)) {
    launch_cpu(Quantize{.codes = codes.view({rows, columns}),
                        .scales = scales.view({rows, quantized_blocks(columns)}),
                        .in = in.view({rows, columns})});
  }

  Values code_values() {
    const auto* first = codes.data<std::int8_t>();
    return {first, first + rows * columns};
  }
  Array values(DType dtype) {
    Array out(dtype, rows * columns);
    launch_cpu(Dequantize{.out = out.view({rows, columns}),
                          .codes = codes.view({rows, columns}),
                          .scales = scales.view({rows, quantized_blocks(columns)})});
    return out;
  }
};

/// Returns the largest magnitude in the block of element i.
double largest_in_block(const Values& x, std::int64_t columns, std::int64_t i) {
  const std::int64_t row = i / columns * columns, at = i - row;
  const std::int64_t first = row + at / quantized_block * quantized_block;
  const std::int64_t end = std::min(first + quantized_block, row + columns);
  double largest = 0;
  for (std::int64_t j = first; j < end; ++j)
    largest = std::max(largest, std::abs(x[static_cast<std::size_t>(j)]));
  return largest;
}

}  // namespace

TEST_CASE("a matrix in 8 bits is as near as its documentation says", "[quantized]") {
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                      {3, 32},
                                      {5, 33},
                                      {7, 96},
                                      {300, 1001},
                                      {2, 70'001}})
    for (const double size : {1.0, 1e-2, 1e-4, 1e-7, 1e6}) {
      CAPTURE(rows, columns, size);
      const Values x = Array(DType::f32, random_values(rows * columns, 1, size)).values();
      Rounded rounded(rows, columns, x);
      const Values codes = rounded.code_values(), scales = rounded.scales.values();
      const Values back = rounded.values(DType::f64).values();
      bool exact = true, near = true, nearest = true;
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double s = largest_in_block(x, columns, i) / 127;
        const double scale = scales[static_cast<std::size_t>(
            i / columns * quantized_blocks(columns) + i % columns / quantized_block)];
        exact = exact && back[at] == codes[at] * scale;
        near = near && std::abs(back[at] - x[at]) <= (s >= 6.1e-5 ? 0.57 * s : 4e-6 + s / 2);
        nearest =
            nearest && std::abs(codes[at] * s - x[at]) <= 0.5001 * s && std::abs(codes[at]) <= 127;
      }
      CHECK(exact);
      CHECK(near);
      CHECK(nearest);
    }
}

TEST_CASE("a block in 8 bits has the bits of ggml's Q8_0", "[quantized]") {
  // The largest magnitude makes the scale 1, so that these numbers are between two codes.
  Values x(quantized_block, 0.0);
  const Values ties{-127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 63.5, 0.49, -0.51};
  std::ranges::copy(ties, x.begin());
  Rounded rounded(1, quantized_block, x);
  CHECK(rounded.scales.data<Half>()->bits == 0x3C00);  // 1
  const Values codes = rounded.code_values();
  CHECK(Values(codes.begin(), codes.begin() + 11) ==
        Values{-127, 1, 2, 3, -1, -2, -3, 64, 0, -1, 0});
  // A scale that f16 does not have: 2 / 127 = 0.0157480... is 0x2408. Codes follow the exact one.
  std::ranges::fill(x, 0.0);
  x[0] = -2;
  x[1] = 0.15;  // 9.525 of the exact scale, 9.522 of the rounded one
  Rounded other(1, quantized_block, x);
  CHECK(other.scales.data<Half>()->bits == 0x2408);
  CHECK(other.code_values()[0] == -127);
  CHECK(other.code_values()[1] == 10);
}

TEST_CASE("what has been rounded to 8 bits is rounded to itself", "[quantized]") {
  for (const std::int64_t columns : {64, 77}) {
    Rounded once(40, columns, random_values(40 * columns, 5, 0.05));
    Rounded twice(40, columns, once.values(DType::f32).values());
    CHECK(once.codes.bytes() == twice.codes.bytes());
    CHECK(once.scales.bytes() == twice.scales.bytes());
  }
}

TEST_CASE("zeros stay zeros, and a block too large has an infinite scale", "[quantized]") {
  Rounded zeros(2, 40, Values(80, 0.0));
  CHECK(zeros.values(DType::f32).values() == Values(80, 0.0));
  Values x(80, 1.0);
  x[45] = 9e6;  // above 127 * 65504
  Rounded large(2, 40, x);
  const Values scales = large.scales.values();
  CHECK(std::isinf(scales[2]));
  CHECK(std::isfinite(scales[0]));
  CHECK(std::isfinite(scales[1]));
  CHECK(std::isfinite(scales[3]));
}

TEST_CASE("8-bit values are rounded to the dtype that asks", "[quantized]") {
  Rounded rounded(30, 100, random_values(30 * 100, 2, 0.1));
  const Values exact = rounded.values(DType::f64).values();
  CHECK(rounded.values(DType::f32).values() == exact);  // 8 and 11 bits fit
  for (const DType dtype : {DType::bf16, DType::f16}) {
    CAPTURE(name_of(dtype));
    CHECK((rounded.values(dtype).bytes() == Array(dtype, exact).bytes()));
  }
}

TEST_CASE("8-bit values do not depend on the number of threads", "[quantized]") {
  CHECK(same_with_any_threads([] {
    Rounded rounded(700, 300, random_values(700 * 300, 1));
    return std::array{rounded.codes.bytes(), rounded.scales.bytes(),
                      rounded.values(DType::bf16).bytes()};
  }));
}

}  // namespace sluice::test::quantized_test
