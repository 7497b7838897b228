#include "kernels/muon.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::muon_kernels_test {
namespace {

constexpr std::int64_t count = 70'001;  // more than one piece of the CPU's work

Values rounded(DType dtype, const Values& values) {
  return Array(dtype, values).values();
}

}  // namespace

TEST_CASE("Muon's momentum is Nesterov's", "[muon]") {
  struct Types {
    DType moment, grad, direction;
  };
  for (const Types& types : {Types{DType::f32, DType::f32, DType::f32},
                             {DType::f32, DType::bf16, DType::f32},
                             {DType::f32, DType::f32, DType::bf16},
                             {DType::f32, DType::bf16, DType::bf16},
                             {DType::f64, DType::f64, DType::f64}}) {
    CAPTURE(name_of(types.moment), name_of(types.grad), name_of(types.direction));
    const Values m = rounded(types.moment, random_values(count, 1));
    const Values g = rounded(types.grad, random_values(count, 2));
    Array moment(types.moment, m), grad(types.grad, g), direction(types.direction, count);
    Array scale(types.moment, Values{0.5});
    launch_cpu(MuonMomentum{.direction = direction.flat(),
                            .first_moment = moment.flat(),
                            .grad = grad.flat(),
                            .gradient_scale = scale.flat(),
                            .momentum = 0.9});
    Values moved = m, ahead = m;
    for (std::size_t i = 0; i < m.size(); ++i) {
      moved[i] = 0.9 * m[i] + 0.1 * 0.5 * g[i];
      ahead[i] = 0.9 * moved[i] + 0.1 * 0.5 * g[i];
    }
    CHECK(relative_l2(moment.values(), moved) <= tolerance_of(types.moment));
    CHECK(relative_l2(direction.values(), ahead) <= tolerance_of(types.direction));
  }
}

TEST_CASE("a matrix is divided by its norm, or by epsilon if that is larger", "[muon]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    CAPTURE(name_of(dtype));
    const Values values = rounded(dtype, random_values(count, 3));
    Array partial(DType::f64, Values{3, 9, 4});
    for (const double epsilon : {1e-7, 10.0}) {
      Array matrix(dtype, values);
      launch_cpu(
          DivideByNorm{.matrix = matrix.flat(), .partial = partial.flat(), .epsilon = epsilon});
      Values expected = values;
      for (double& value : expected)
        value /= std::max(4.0, epsilon);
      CHECK(relative_l2(matrix.values(), expected) <= tolerance_of(dtype));
    }
  }
}

TEST_CASE("a symmetric sum reads lower triangles and writes all", "[muon]") {
  constexpr double unread = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const std::int64_t n : {1, 2, 63, 64, 65, 200}) {
      CAPTURE(name_of(dtype), n);
      const auto at = [n](std::int64_t i, std::int64_t j) {
        return static_cast<std::size_t>(i * n + j);
      };
      Values matrix = rounded(dtype, random_values(n * n, 4));
      Values added = rounded(dtype, random_values(n * n, 5));
      Values sum(matrix.size()), mirrored(matrix.size());
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j <= i; ++j) {
          mirrored[at(i, j)] = mirrored[at(j, i)] = matrix[at(i, j)];
          sum[at(i, j)] = sum[at(j, i)] =
              (i == j ? 3.5 : 0) - 0.75 * added[at(i, j)] + 2 * matrix[at(i, j)];
          if (i != j) matrix[at(j, i)] = added[at(j, i)] = unread;
        }
      Array out(dtype, matrix), other(dtype, added), alone(dtype, matrix);
      launch_cpu(SymmetricSum{.out = alone.view({n, n})});
      CHECK((alone.values() == mirrored));
      launch_cpu(SymmetricSum{.out = out.view({n, n}),
                              .added = other.view({n, n}),
                              .factor = 2,
                              .added_factor = -0.75,
                              .identity = 3.5});
      CHECK(relative_l2(out.values(), sum) <= tolerance_of(dtype));
    }
}

TEST_CASE("Muon's update decays weights and subtracts the direction", "[muon]") {
  for (const DType working : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const DType direction : {DType::f32, DType::bf16}) {
      const bool wide = working == DType::f64;
      const DType full = wide ? working : DType::f32;
      if (wide && direction == DType::bf16) continue;
      CAPTURE(name_of(working), name_of(direction));
      const Values w = rounded(full, random_values(count, 6));
      const Values d = rounded(wide ? working : direction, random_values(count, 7));
      Array master(full, w), derived(working, count), change(wide ? working : direction, d);
      launch_cpu(MuonUpdate{.master = master.flat(),
                            .working = working == full ? View{} : derived.flat(),
                            .direction = change.flat(),
                            .rate = 0.1,
                            .step = 0.02,
                            .weight_decay = 0.5});
      Values expected = w;
      for (std::size_t i = 0; i < w.size(); ++i)
        expected[i] = w[i] - 0.1 * 0.5 * w[i] - 0.02 * d[i];
      CHECK(relative_l2(master.values(), expected) <= tolerance_of(full));
      if (working != full) CHECK(relative_l2(derived.values(), expected) <= tolerance_of(working));
    }
}

}  // namespace sluice::test::muon_kernels_test
