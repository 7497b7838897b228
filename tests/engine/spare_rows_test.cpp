#include "engine/autograd.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/linear/linear_cross_entropy.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

// Rows of zeros behind an embedding table, with which the vocabulary head computes.

namespace sluice::test::spare_rows_test {

TEST_CASE("spare rows of a table change no loss and no gradient, and their gradient is zero") {
  const DevicePtr cpu = make_cpu_device(1 << 20);
  const auto random_tensor = [&](const Shape& shape, std::uint64_t seed) {
    return Tensor::from_host(cpu, shape, DType::f64, random_values(element_count(shape), seed));
  };
  constexpr std::int64_t rows = 5, spare = 3, width = 9;
  const Tensor targets = Tensor::from_tokens(cpu, {3}, std::vector<std::int32_t>{0, 4, 2});
  Tensor hidden = random_tensor({3, width}, 1);
  hidden.set_requires_grad(true);
  const auto train = [&](Tensor& table, const Tensor& gradient) {
    table.set_requires_grad(true);
    set_gradient_buffer(table, gradient);
    set_gradient_buffer(hidden, Tensor::empty(cpu, hidden.shape(), DType::f64));
    const auto result = linear_cross_entropy(hidden, table, targets, {.scale = 0.5, .chunk = 2});
    backward(result.loss);
    return result.losses.to_host();
  };
  Tensor plain = random_tensor({rows, width}, 2);
  Values elements = plain.to_host();
  const Values losses = train(plain, Tensor::empty(cpu, plain.shape(), DType::f64));
  const Values wanted = hidden.grad().to_host();

  elements.resize((rows + spare) * width);
  const Tensor all = Tensor::from_host(cpu, {rows + spare, width}, DType::f64, elements);
  Tensor table = all.slice(0, {rows, width}, spare);
  CHECK(table.with_spare_rows().shape() == all.shape());
  CHECK(table.shape() == plain.shape());
  const Tensor sums = Tensor::from_host(cpu, all.shape(), DType::f64, Values(elements.size(), 7.0));
  const Tensor narrow = Tensor::empty(cpu, plain.shape(), DType::f64);
  CHECK(train(table, narrow) == losses);
  CHECK(narrow.to_host() == plain.grad().to_host());
  CHECK(train(table, sums.slice(0, {rows, width}, spare)) == losses);
  CHECK_THAT(hidden.grad().to_host(), Catch::Matchers::Approx(wanted).margin(1e-14));
  Values gradient = sums.to_host();
  const Values tail(gradient.begin() + rows * width, gradient.end());
  CHECK(tail == Values(spare * width, 0.0));
  gradient.resize(rows * width);
  CHECK(gradient == plain.grad().to_host());
  CHECK(logits_of(hidden.slice(0, {1, width}), table).to_host() ==
        logits_of(hidden.slice(0, {1, width}), plain).to_host());
  forget_gradient(table);
  zero_unused_gradient(table);
  CHECK(sums.to_host() == Values(elements.size(), 0.0));
  CHECK_THROWS(all.slice(0, {rows, width}, spare + 1));
}

}  // namespace sluice::test::spare_rows_test
