#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/copy_columns.h"
#include "kernels/elementwise.h"
#include "kernels/head_order.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::elementwise_test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

TEST_CASE("gelu and relu agree with their definitions", "[elementwise]") {
  for (const DType dtype : dtypes) {
    for (const std::int64_t size : {1, 15, 16, 33, 5003}) {
      CAPTURE(name_of(dtype), size);
      Array in(dtype, random_values(size, 1, 6)), grad_out(dtype, random_values(size, 2));
      Array gelu(dtype, size), relu(dtype, size), gelu_grad(dtype, size), relu_grad(dtype, size);
      launch_cpu(GeluForward{.out = gelu.flat(), .in = in.flat()});
      launch_cpu(ReluForward{.out = relu.flat(), .in = in.flat()});
      launch_cpu(
          GeluBackward{.grad_in = gelu_grad.flat(), .grad_out = grad_out.flat(), .in = in.flat()});
      launch_cpu(ReluBackward{
          .grad_in = relu_grad.flat(), .grad_out = grad_out.flat(), .out = relu.flat()});
      Values expected[4];
      const Values x = in.values(), g = grad_out.values();
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double root = std::sqrt(2 / M_PI),
                     cubic = root * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
        const double t = std::tanh(cubic);
        expected[0].push_back(x[i] / 2 * (1 + t));
        expected[1].push_back(std::max(x[i], 0.0));
        expected[2].push_back(g[i] * ((1 + t) / 2 + x[i] / 2 * (1 - t * t) * root *
                                                        (1 + 3 * 0.044715 * x[i] * x[i])));
        expected[3].push_back(x[i] > 0 ? g[i] : 0);
      }
      // The tail of gelu is a difference of nearly equal numbers: its error is absolute, measured
      // relative to the input.
      const auto error = [&](const Array& actual, const Values& exact, const Values& unit) {
        return relative_l2(actual.values(), exact) * relative_l2(exact, Values(exact.size())) /
               relative_l2(unit, Values(unit.size()));
      };
      CHECK(error(gelu, expected[0], x) <= tolerance_of(dtype) / 2);
      CHECK(relu.values() == expected[1]);
      CHECK(error(gelu_grad, expected[2], g) <= tolerance_of(dtype));
      CHECK(relu_grad.values() == expected[3]);
      launch_cpu(
          GeluBackward{.grad_in = grad_out.flat(), .grad_out = grad_out.flat(), .in = in.flat()});
      CHECK(grad_out.bytes() == gelu_grad.bytes());  // in place
    }
  }
}

TEST_CASE("exact gelu agrees with its definition", "[elementwise]") {
  for (const DType dtype : dtypes)
    for (const std::int64_t size : {1, 15, 16, 33, 5003}) {
      CAPTURE(name_of(dtype), size);
      Array in(dtype, random_values(size, 1, 6)), grad_out(dtype, random_values(size, 2));
      Array out(dtype, size), grad_in(dtype, size);
      launch_cpu(GeluForward{.out = out.flat(), .in = in.flat(), .exact = true});
      launch_cpu(GeluBackward{
          .grad_in = grad_in.flat(), .grad_out = grad_out.flat(), .in = in.flat(), .exact = true});
      const Values x = in.values(), g = grad_out.values();
      double worst = 0, worst_gradient = 0, most = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double phi = std::erfc(-x[i] / std::sqrt(2)) / 2;
        const double slope = phi + x[i] * std::exp(-x[i] * x[i] / 2) / std::sqrt(2 * M_PI);
        worst = std::max(worst, std::abs(out.values()[i] - x[i] * phi));
        worst_gradient = std::max(worst_gradient, std::abs(grad_in.values()[i] - g[i] * slope));
        most = std::max(most, std::abs(x[i]));
      }
      CHECK(worst <= most * tolerance_of(dtype));
      CHECK(worst_gradient <= 2 * tolerance_of(dtype));
    }
}

TEST_CASE("heads are sorted, and back", "[elementwise]") {
  for (const DType dtype : dtypes)
    for (const auto& [rows, heads, width] :
         {std::array<std::int64_t, 3>{1, 1, 1}, {5, 3, 7}, {40, 2, 16}}) {
      CAPTURE(name_of(dtype), rows, heads, width);
      const std::int64_t columns = 3 * heads * width;
      Array in(dtype, random_values(rows * columns, 1)), out(dtype, rows * columns);
      Array back(dtype, rows * columns);
      const auto run_order = [&, h = heads, r = rows](Array& to, Array& from, bool inverse) {
        launch_cpu(HeadOrder{.out = to.view({r, columns}),
                             .in = from.view({r, columns}),
                             .heads = static_cast<int>(h),
                             .inverse = inverse});
      };
      run_order(out, in, false);
      const Values from = in.values(), to = out.values();
      bool right = true;
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        const std::int64_t row = i / columns, part = i / (heads * width) % 3;
        const std::int64_t head = i / width % heads, column = i % width;
        right &= to[static_cast<std::size_t>(i)] ==
                 from[static_cast<std::size_t>(row * columns + (head * 3 + part) * width + column)];
      }
      CHECK(right);
      run_order(back, out, true);
      CHECK(back.bytes() == in.bytes());
    }
}

TEST_CASE("columns are copied to other columns, and the rest stays") {
  for (const DType dtype : dtypes) {
    const std::int64_t rows = 130, from = 7, to = 9, columns = 4;
    Array in(dtype, random_values(rows * from, 1)), out(dtype, random_values(rows * to, 2));
    const Values before = out.values();
    launch_cpu(CopyColumns{.out = out.view({rows, to}),
                           .in = in.view({rows, from}),
                           .out_first = 5,
                           .in_first = 2,
                           .columns = columns});
    const Values source = in.values(), after = out.values();
    bool right = true;
    for (std::int64_t i = 0; i < rows * to; ++i) {
      const std::int64_t column = i % to - 5;
      const auto at = static_cast<std::size_t>(i);
      right &=
          after[at] ==
          (column < 0 ? before[at] : source[static_cast<std::size_t>(i / to * from + 2 + column)]);
    }
    CHECK(right);
  }
}

}  // namespace
}  // namespace sluice::test::elementwise_test
