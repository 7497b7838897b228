#include <cmath>

#include "kernels/swiglu.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::swiglu_test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

TEST_CASE("swiglu agrees with its definition", "[elementwise]") {
  for (const DType dtype : dtypes)
    for (const auto& [rows, width] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 7}, {5, 64}, {40, 1001}}) {
      CAPTURE(name_of(dtype), rows, width);
      Array in(dtype, random_values(2 * rows * width, 1, 6));
      Array grad_out(dtype, random_values(rows * width, 2)), out(dtype, rows * width);
      Array grad_in(dtype, 2 * rows * width);
      launch_cpu(SwigluForward{.out = out.view({rows, width}), .in = in.view({rows, 2 * width})});
      const auto backward = [&](Array& to) {
        launch_cpu(SwigluBackward{.grad_in = to.view({rows, 2 * width}),
                                  .grad_out = grad_out.view({rows, width}),
                                  .in = in.view({rows, 2 * width})});
      };
      backward(grad_in);
      const Values x = in.values(), g = grad_out.values();
      Values expected, expected_gradient(x.size());
      for (std::size_t i = 0; i < g.size(); ++i) {
        const auto columns = static_cast<std::size_t>(width);
        const std::size_t gate = i + i / columns * columns, up = gate + columns;
        const double s = 1 / (1 + std::exp(-x[gate]));
        expected.push_back(x[gate] * s * x[up]);
        expected_gradient[gate] = g[i] * x[up] * (s + x[gate] * s * (1 - s));
        expected_gradient[up] = g[i] * x[gate] * s;
      }
      CHECK(relative_l2(out.values(), expected) <= tolerance_of(dtype));
      CHECK(relative_l2(grad_in.values(), expected_gradient) <= tolerance_of(dtype));
      backward(in);
      CHECK(in.bytes() == grad_in.bytes());  // in place
    }
}

TEST_CASE("swiglu of large gates is their product with up, or zero", "[elementwise]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    CAPTURE(name_of(dtype));
    Array in(dtype, Values{1000, -1000, 3, 3}), out(dtype, 2), grad_in(dtype, 4);
    Array grad_out(dtype, Values{1, 1});
    launch_cpu(SwigluForward{.out = out.view({1, 2}), .in = in.view({1, 4})});
    launch_cpu(SwigluBackward{
        .grad_in = grad_in.view({1, 4}), .grad_out = grad_out.view({1, 2}), .in = in.view({1, 4})});
    CHECK(out.values()[0] == Approx(3000).epsilon(tolerance_of(dtype)));
    CHECK(out.values()[1] == 0);
    CHECK(grad_in.values() == Values{3, 0, 1000, 0});
  }
}

TEST_CASE("swiglu does not depend on the number of threads", "[elementwise]") {
  CHECK(same_with_any_threads([] {
    Array in(DType::bf16, random_values(2 * 300 * 129, 1)), out(DType::bf16, 300 * 129);
    launch_cpu(SwigluForward{.out = out.view({300, 129}), .in = in.view({300, 258})});
    return std::array{out.bytes()};
  }));
}

}  // namespace
}  // namespace sluice::test::swiglu_test
