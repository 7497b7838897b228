#include <cmath>
#include <cstdlib>

#include "kernels/gemm.h"

#include "kernels/cpu/gemm.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::gemm_test {
namespace {

struct Problem {
  std::int64_t m, n, k;
  DType dtype;
  DType out_dtype;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  bool has_bias = false;
  DType bias_dtype = DType::f32;
  std::int64_t padding = 0;  ///< elements between the rows of all three matrices
};

View matrix(Array& array, std::int64_t rows, std::int64_t columns, std::int64_t padding) {
  View view = array.view({rows, columns});
  view.strides[0] = columns + padding;
  return view;
}

struct Matrices {
  Array a, b, bias, out;
  Values before;

  explicit Matrices(const Problem& p, std::uint64_t seed = 1)
      : a(p.dtype, random_values(stored(p.m, p.k, p.transpose_a, p.padding), seed)),
        b(p.dtype, random_values(stored(p.k, p.n, p.transpose_b, p.padding), seed + 1)),
        bias(p.bias_dtype, random_values(p.n, seed + 2)),
        out(p.out_dtype, p.m * (p.n + p.padding)) {
    // Otherwise it stays NaN, and a product that reads what it should overwrite shows.
    if (p.accumulate) out.set(random_values(p.m * (p.n + p.padding), seed + 3));
    before = out.values();
  }
  Gemm gemm(const Problem& p) {
    return {.out = matrix(out, p.m, p.n, p.padding),
            .a = p.transpose_a ? matrix(a, p.k, p.m, p.padding) : matrix(a, p.m, p.k, p.padding),
            .b = p.transpose_b ? matrix(b, p.n, p.k, p.padding) : matrix(b, p.k, p.n, p.padding),
            .bias = p.has_bias ? bias.flat() : View{},
            .transpose_a = p.transpose_a,
            .transpose_b = p.transpose_b,
            .accumulate = p.accumulate};
  }

 private:
  static std::int64_t stored(std::int64_t rows, std::int64_t columns, bool transposed,
                             std::int64_t padding) {
    return transposed ? columns * (rows + padding) : rows * (columns + padding);
  }
};

/// The operand as a plain row-major matrix.
Values untangle(const Values& values, std::int64_t rows, std::int64_t columns, bool transposed,
                std::int64_t padding) {
  Values result;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      result.push_back(values[static_cast<std::size_t>(transposed ? j * (rows + padding) + i
                                                                  : i * (columns + padding) + j)]);
  return result;
}

Values reference(const Problem& p, const Matrices& in) {
  const Values a = untangle(in.a.values(), p.m, p.k, p.transpose_a, p.padding);
  const Values b = untangle(in.b.values(), p.k, p.n, p.transpose_b, p.padding);
  const Values bias = in.bias.values();
  Values out = untangle(in.before, p.m, p.n, false, p.padding);
  const auto [m, n, k] = std::array{static_cast<std::size_t>(p.m), static_cast<std::size_t>(p.n),
                                    static_cast<std::size_t>(p.k)};
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j)
      out[i * n + j] = p.accumulate ? out[i * n + j] : (p.has_bias ? bias[j] : 0.0);
    for (std::size_t l = 0; l < k; ++l)
      for (std::size_t j = 0; j < n; ++j)
        out[i * n + j] += a[i * k + l] * b[l * n + j];
  }
  return out;
}

using Multiply = void (*)(const Gemm&);
void launch(const Gemm& op) {
  launch_cpu(op);
}

void check_product(const Problem& p, Multiply multiply = launch) {
  Matrices in(p);
  const Values expected = reference(p, in);
  multiply(in.gemm(p));
  const Values all = in.out.values();
  const double error = relative_l2(untangle(all, p.m, p.n, false, p.padding), expected);
  INFO(p.m << " x " << p.n << " x " << p.k << " " << name_of(p.dtype) << " -> "
           << name_of(p.out_dtype) << (p.transpose_a ? " at" : "") << (p.transpose_b ? " bt" : "")
           << (p.accumulate ? " accumulate" : "") << " padding " << p.padding << " bias "
           << (p.has_bias ? name_of(p.bias_dtype) : "none"));
  CHECK(error <= tolerance_of(p.out_dtype));
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = p.n; j < p.n + p.padding; ++j) {
      const auto at = static_cast<std::size_t>(i * (p.n + p.padding) + j);
      // NaN before and after, or the same number.
      if (all[at] != in.before[at] && !(std::isnan(all[at]) && std::isnan(in.before[at])))
        FAIL("the gap after row " << i << " was written");
    }
  }
}

const std::pair<DType, DType> dtypes[] = {{DType::f32, DType::f32},  {DType::bf16, DType::bf16},
                                          {DType::bf16, DType::f32}, {DType::f16, DType::f16},
                                          {DType::f16, DType::f32},  {DType::f64, DType::f64}};

TEST_CASE("matrix products of every dtype, transpose and size", "[gemm]") {
  const std::int64_t sizes[][3] = {{1, 1, 1},    {3, 1, 17},   {1, 17, 3},    {17, 3, 1},
                                   {17, 64, 3},  {64, 17, 64}, {64, 64, 255}, {3, 257, 17},
                                   {257, 3, 64}, {65, 129, 1}, {1, 385, 257}};
  // Each product is so small that a parallel region would be all of its time.
  const ThreadCount one_thread(1);
  for (const auto& [dtype, out_dtype] : dtypes) {
    for (const auto& [m, n, k] : sizes) {
      for (const int transposes : {0, 1, 2, 3}) {
        Problem p{.m = m, .n = n, .k = k, .dtype = dtype, .out_dtype = out_dtype};
        p.transpose_a = (transposes & 1) != 0;
        p.transpose_b = (transposes & 2) != 0;
        check_product(p);
        p.accumulate = true;
        check_product(p);
        p.padding = 5;
        check_product(p);
        p.accumulate = false;
        p.has_bias = true;
        p.bias_dtype = dtype;
        check_product(p);
        p.padding = 0;
        p.bias_dtype = accumulator_of(dtype);
        check_product(p);
      }
    }
  }
}

TEST_CASE("matrix products larger than a tile", "[gemm]") {
  const std::int64_t sizes[][3] = {{255, 257, 256}, {256, 256, 64}, {385, 255, 17},
                                   {257, 800, 64},  {800, 385, 3},  {64, 64, 3000}};
  int turn = 0;
  for (const auto& [dtype, out_dtype] : dtypes) {
    for (const auto& [m, n, k] : sizes) {
      Problem p{.m = m, .n = n, .k = k, .dtype = dtype, .out_dtype = out_dtype};
      // Every combination comes up over the list without multiplying it.
      ++turn;
      p.transpose_a = turn % 2 == 0;
      p.transpose_b = turn % 3 == 0;
      p.accumulate = turn % 5 < 2;
      p.has_bias = !p.accumulate && turn % 7 < 4;
      p.bias_dtype = turn % 2 == 0 ? dtype : accumulator_of(dtype);
      p.padding = turn % 4 == 0 ? 3 : 0;
      check_product(p);
    }
  }
  check_product({.m = 385, .n = 800, .k = 800, .dtype = DType::f32, .out_dtype = DType::f32});
}

TEST_CASE("the plain loops compute the same products", "[gemm]") {
  for (const auto& [dtype, out_dtype] : dtypes) {
    for (int options = 0; options < 16; ++options) {
      Problem p{.m = 17, .n = 259, .k = 67, .dtype = dtype, .out_dtype = out_dtype};
      p.transpose_a = (options & 1) != 0;
      p.transpose_b = (options & 2) != 0;
      p.accumulate = (options & 4) != 0;
      p.has_bias = !p.accumulate;
      p.bias_dtype = accumulator_of(dtype);
      p.padding = (options & 8) != 0 ? 3 : 0;
      check_product(p, cpu::gemm_plain);
    }
  }
}

/// All layouts of a product, with and without what may be added to it.
void check_all_forms(Problem p, Multiply multiply = launch) {
  for (const int transposes : {0, 1, 2, 3}) {
    p.transpose_a = (transposes & 1) != 0;
    p.transpose_b = (transposes & 2) != 0;
    for (const std::int64_t padding : {0, 3}) {
      p.padding = padding;
      p.accumulate = p.has_bias = false;
      check_product(p, multiply);
      p.accumulate = true;
      check_product(p, multiply);
      p.accumulate = false;
      p.has_bias = true;
      for (const DType bias : {p.dtype, accumulator_of(p.dtype)}) {
        p.bias_dtype = bias;
        check_product(p, multiply);
      }
    }
  }
}

TEST_CASE("products of 1 to 8 rows, in all layouts", "[gemm]") {
  const ThreadCount one_thread(1);
  for (const auto& [dtype, out_dtype] : dtypes)
    for (std::int64_t m = 1; m <= 9; ++m)
      for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 7}, {259, 33}})
        check_all_forms({.m = m, .n = n, .k = k, .dtype = dtype, .out_dtype = out_dtype});
}

TEST_CASE("products of few rows whose work is cut into parts", "[gemm]") {
  // Parts of unequal size, the last one of fewer rows than are read together. Rows of an even
  // length are read in pairs where they begin at even places.
  for (const auto& [dtype, out_dtype] : dtypes) {
    for (const std::int64_t m : {1, 3}) {
      for (const std::int64_t odd : {0, 1}) {
        for (const bool transpose_b : {false, true}) {
          Problem p{
              .m = m, .n = 516 + odd, .k = 1030 + odd, .dtype = dtype, .out_dtype = out_dtype};
          p.transpose_b = transpose_b;
          check_product(p);
          p.accumulate = true;
          for (const std::int64_t padding : {5, 6}) {
            p.padding = padding;
            check_product(p);
          }
        }
      }
    }
  }
}

TEST_CASE("products of few rows are the same with and without oneDNN", "[gemm]") {
  for (const auto& [dtype, out_dtype] : dtypes) {
    if (dtype == DType::f64) continue;
    for (const std::int64_t m : {1, 8}) {
      for (const bool transpose_b : {false, true}) {
        const Problem p{.m = m,
                        .n = 130,
                        .k = 67,
                        .dtype = dtype,
                        .out_dtype = out_dtype,
                        .transpose_b = transpose_b};
        Matrices in(p), alone(p);
        launch_cpu(in.gemm(p));
        cpu::gemm_few_rows(alone.gemm(p));
        CHECK(in.out.bytes() == alone.out.bytes());
      }
    }
  }
}

/// Adds to what is there in f32 and rounds once: nowhere is the result farther from the exact one
/// than half the distance of two bf16 numbers, and what the sums in f32 lose.
void check_rounded_once(const Problem& p, Multiply multiply) {
  Matrices in(p);
  const Values expected = reference(p, in);
  multiply(in.gemm(p));
  const Values found = untangle(in.out.values(), p.m, p.n, false, p.padding);
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double half = std::ldexp(1.0, std::ilogb(expected[i]) - 8);
    if (!(std::abs(found[i] - expected[i]) <= half + 1e-5))
      FAIL(p.m << " x " << p.n << " x " << p.k << ": element " << i << " is " << found[i]
               << ", not " << expected[i] << " rounded to bf16");
  }
}

TEST_CASE("a product is added to bf16 sums with one rounding", "[gemm]") {
  // 3000: oneDNN may split so long a sum.
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{17, 33, 64}, {300, 800, 65}, {64, 40, 3000}}) {
    for (const int transposes : {0, 1, 2, 3}) {
      Problem p{.m = m, .n = n, .k = k, .dtype = DType::bf16, .out_dtype = DType::bf16};
      p.transpose_a = (transposes & 1) != 0;
      p.transpose_b = (transposes & 2) != 0;
      p.accumulate = true;
      p.padding = transposes == 0 ? 3 : 0;
      INFO("transposes " << transposes);
      check_rounded_once(p, launch);
      if (m * n * k < 1 << 20) check_rounded_once(p, cpu::gemm_plain);
    }
  }
}

TEST_CASE("the bits of a product depend neither on threads nor on the run", "[gemm]") {
  for (const auto& [dtype, out_dtype] : dtypes) {
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{257, 385, 130},
                                  {1, 800, 257},
                                  {1, 520, 1031},
                                  {8, 520, 1031},
                                  {64, 3, 800},
                                  {385, 64, 800}}) {
      for (const int transposes : {0, 1, 2}) {
        Problem p{.m = m, .n = n, .k = k, .dtype = dtype, .out_dtype = out_dtype};
        p.transpose_a = transposes == 1;
        p.transpose_b = transposes == 2;
        p.accumulate = transposes == 1;
        INFO(m << " x " << n << " x " << k << " " << name_of(dtype) << " -> " << name_of(out_dtype)
               << " transposes " << transposes);
        CHECK(same_with_any_threads([&] {
          Matrices in(p);
          launch_cpu(in.gemm(p));
          return in.out.bytes();
        }));
      }
    }
  }
}

TEST_CASE("a NaN stays in its row and column", "[gemm]") {
  for (const auto& [dtype, out_dtype] : dtypes) {
    for (const std::int64_t m : {5, 9}) {
      const Problem p{.m = m, .n = 11, .k = 5, .dtype = dtype, .out_dtype = out_dtype};
      Matrices in(p);
      Values a = in.a.values();
      a[3 * 5 + 2] = NAN;
      in.a.set(a);
      launch_cpu(in.gemm(p));
      const Values out = in.out.values();
      for (std::size_t i = 0; i < out.size(); ++i)
        CHECK(std::isnan(out[i]) == (i / 11 == 3));
    }
  }
}

TEST_CASE("every f16 number is itself in a product of one row", "[gemm]") {
  constexpr std::int64_t count = 1 << 16;
  const Problem p{.m = 1, .n = count, .k = 1, .dtype = DType::f16, .out_dtype = DType::f32};
  Matrices in(p);
  in.a.set({1.0});
  for (std::int64_t bits = 0; bits < count; ++bits)
    in.b.data<std::uint16_t>()[bits] = static_cast<std::uint16_t>(bits);
  launch_cpu(in.gemm(p));
  const Values expected = in.b.values(), found = in.out.values();
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (found[i] != expected[i] && !(std::isnan(found[i]) && std::isnan(expected[i])))
      FAIL("bits " << i << " became " << found[i] << ", not " << expected[i]);
}

TEST_CASE("empty products and operands that do not fit", "[gemm]") {
  for (const auto& [dtype, out_dtype] : dtypes) {
    Problem p{.m = 0, .n = 3, .k = 4, .dtype = dtype, .out_dtype = out_dtype};
    Matrices no_rows(p);
    launch_cpu(no_rows.gemm(p));
    p = {.m = 3, .n = 0, .k = 4, .dtype = dtype, .out_dtype = out_dtype};
    Matrices no_columns(p);
    launch_cpu(no_columns.gemm(p));
    // A sum of nothing is zero, plus the bias.
    p = {.m = 3, .n = 2, .k = 0, .dtype = dtype, .out_dtype = out_dtype};
    check_product(p);
    p = {.m = 3, .n = 2, .k = 4, .dtype = dtype, .out_dtype = out_dtype};
    Matrices in(p);
    Gemm wrong = in.gemm(p);
    wrong.transpose_a = true;
    CHECK(error_message([&] { launch_cpu(wrong); }) != "(no error)");
  }
}

}  // namespace
}  // namespace sluice::test::gemm_test
