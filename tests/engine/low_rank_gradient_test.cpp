#include "engine/autograd.h"
#include "engine/ops/linear/activation.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/linear/low_rank.h"
#include "tests/engine/gradient_leaves.h"
#include "tests/support/catch.h"

namespace sluice::test::low_rank_gradient_test {
namespace {

struct Case {
  std::int64_t rows, in, out, rank;
  std::vector<LowRankPart> parts;
};
/// One change of all columns; changes of some, with a gap between them and with another rank.
const Case cases[] = {{1, 1, 1, 1, {{0, 1}}},
                      {6, 5, 7, 3, {{0, 7}}},
                      {9, 8, 20, 2, {{0, 8}, {14, 6}}},
                      {33, 17, 40, 5, {{4, 10}, {14, 10}, {30, 10}}}};

Shape shape_of_b(const Case& c) {
  std::int64_t columns = 0;
  for (const LowRankPart& part : c.parts)
    columns += part.columns;
  return {columns, c.rank};
}

Shape shape_of_a(const Case& c) {
  return {c.rank * static_cast<std::int64_t>(c.parts.size()), c.in};
}

Leaves leaves_of(const Case& c) {
  const auto cpu = device();
  return {random_tensor(cpu, {c.rows, c.in}, 1), random_tensor(cpu, {c.in, c.out}, 2),
          random_tensor(cpu, shape_of_a(c), 3), random_tensor(cpu, shape_of_b(c), 4)};
}

Tensor adapted(const Leaves& leaf, const Case& c) {
  return add_low_rank(linear(leaf[0], leaf[1]), leaf[0],
                      {.a = leaf[2], .b = leaf[3], .parts = c.parts, .scale = 0.7});
}

bool keeps(const Tensor& result, std::string_view node, std::string_view name) {
  for (const KeptTensor& kept : kept_tensors(result))
    if (kept.node == node && kept.saved.name == name) return true;
  return false;
}

}  // namespace

TEST_CASE("low-rank changes have the gradient of their formula", "[gradient][lora]") {
  for (const Case& c : cases) {
    CAPTURE(c.rows, c.in, c.out, c.rank, c.parts.size());
    const Leaves leaves = leaves_of(c);
    CHECK(gradcheck([&](const Leaves& leaf) { return adapted(leaf, c); }, leaves) == "");
    // Each element is x W plus the scaled product of the three matrices.
    const Values x = leaves[0].to_host(), w = leaves[1].to_host(), a = leaves[2].to_host(),
                 b = leaves[3].to_host(), actual = adapted(leaves, c).to_host();
    const auto at = [](std::int64_t row, std::int64_t width, std::int64_t column) {
      return static_cast<std::size_t>(row * width + column);
    };
    for (std::int64_t i = 0; i < c.rows; ++i)
      for (std::int64_t j = 0; j < c.out; ++j) {
        double expected = 0;
        for (std::int64_t k = 0; k < c.in; ++k)
          expected += x[at(i, c.in, k)] * w[at(k, c.out, j)];
        std::int64_t first_inner = 0, row = 0;
        for (const LowRankPart& part : c.parts) {
          if (j >= part.first && j < part.first + part.columns)
            for (std::int64_t r = 0; r < c.rank; ++r)
              for (std::int64_t k = 0; k < c.in; ++k)
                expected += 0.7 * x[at(i, c.in, k)] * a[at(first_inner + r, c.in, k)] *
                            b[at(row + j - part.first, c.rank, r)];
          first_inner += c.rank;
          row += part.columns;
        }
        CHECK(actual[at(i, c.out, j)] == Approx(expected).margin(1e-11));
      }
  }
}

TEST_CASE("nothing is kept or computed for weights that are not trained", "[lora]") {
  const Case& c = cases[2];
  Leaves leaves = leaves_of(c);
  for (const std::size_t trained : {0u, 2u, 3u})
    leaves[trained].set_requires_grad(true);
  const Tensor result = adapted(leaves, c);
  CHECK_FALSE(keeps(result, "linear", "x"));
  CHECK(keeps(result, "low_rank", "x"));
  backward(result, random_tensor(device(), result.shape(), 5));
  CHECK_FALSE(leaves[1].grad());
  CHECK(leaves[2].grad());
  CHECK(leaves[3].grad());
  // An MLP keeps neither its input nor its hidden row.
  const auto cpu = device();
  const MlpWeights frozen{.weight_in = random_tensor(cpu, {8, 12}, 6),
                          .weight_out = random_tensor(cpu, {12, 4}, 7)};
  const Tensor through = mlp(leaves[0], frozen);
  CHECK_FALSE(keeps(through, "gelu_mlp", "x"));
  CHECK_FALSE(keeps(through, "gelu_mlp", "hidden"));
  CHECK(keeps(through, "gelu_mlp", "pre_activation"));
}

TEST_CASE("an activation as an op of its own has the gradient and the bits of the MLP's",
          "[gradient][lora]") {
  const auto cpu = device();
  for (const MlpActivation kind : {MlpActivation::gelu, MlpActivation::exact_gelu,
                                   MlpActivation::relu, MlpActivation::swiglu}) {
    CAPTURE(static_cast<int>(kind));
    const Tensor x = random_tensor(cpu, {7, 10}, 1, 2);
    CHECK(gradcheck([&](const Leaves& leaf) { return activation(leaf[0], kind).out; }, {x}) == "");
    const std::int64_t hidden = kind == MlpActivation::swiglu ? 6 : 12;
    const Tensor in = random_tensor(cpu, {10, 12}, 2), out = random_tensor(cpu, {hidden, 5}, 3);
    Tensor recorded = Tensor::from_host(cpu, x.shape(), DType::f64, x.to_host());
    recorded.set_requires_grad(true);
    const Activated middle = activation(linear(recorded, in), kind);
    CHECK((linear(middle.out, out).to_host() ==
           mlp(x, {.weight_in = in, .weight_out = out, .activation = kind}).to_host()));
    CHECK((middle.recomputable().to_host() == middle.out.to_host()));
  }
}

}  // namespace sluice::test::low_rank_gradient_test
