#include <cmath>

#include "tests/kernels/adamw_state.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/devices.h"

// The random bits that round both moments of an element.

namespace sluice::test::adamw_rounding_test {
namespace {

double correlation(const Values& a, const Values& b) {
  const auto count = static_cast<double>(a.size());
  double sum_a = 0, sum_b = 0, squares_a = 0, squares_b = 0, products = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum_a += a[i];
    sum_b += b[i];
    squares_a += a[i] * a[i];
    squares_b += b[i] * b[i];
    products += a[i] * b[i];
  }
  const auto moment = [&](double product, double x, double y) {
    return product / count - x / count * (y / count);
  };
  return moment(products, sum_a, sum_b) /
         std::sqrt(moment(squares_a, sum_a, sum_a) * moment(squares_b, sum_b, sum_b));
}

}  // namespace

TEST_CASE("whether AdamW rounds one moment up says nothing about the other", "[adamw]") {
  for (const DeviceKind kind : device_kinds())
    for (const DType dtype : {DType::bf16, DType::u8}) {
      CAPTURE(name_of(kind), name_of(dtype));
      AdamWState state(open_device(kind), {dtype, dtype, Weights::master, DType::f32}, 32, 256);
      const Values old_first = state.first_values(), old_second = state.second_values();
      const Values grad = state.grad.to_host();
      const AdamW op = state.op();
      state.update(op);
      const Values first = state.first_values(), second = state.second_values();
      Values first_up, second_up;
      for (std::size_t i = 0; i < grad.size(); ++i) {
        const double m = op.beta1 * old_first[i] + (1 - op.beta1) * grad[i];
        const double v = op.beta2 * old_second[i] + (1 - op.beta2) * grad[i] * grad[i];
        first_up.push_back(std::abs(first[i]) > std::abs(m) ? 1 : 0);
        second_up.push_back(second[i] > v ? 1 : 0);
      }
      // Of 8192 independent pairs the deviation is 1/90; the same bits would give about 1/3.
      CHECK(std::abs(correlation(first_up, second_up)) < 0.07);
    }
}

}  // namespace sluice::test::adamw_rounding_test
