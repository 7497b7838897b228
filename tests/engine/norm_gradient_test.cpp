#include "engine/ops/elementwise.h"
#include "engine/ops/head_order.h"
#include "engine/ops/norm.h"
#include "engine/ops/query_key_norm.h"
#include "tests/engine/gradient_leaves.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"

namespace sluice::test::norm_gradient_test {
namespace {

TEST_CASE("layernorm has the gradient of its formula", "[gradient]") {
  const auto cpu = device();
  const auto function = [](const Leaves& in) { return layernorm(in[0], in[1], in[2], 1e-5); };
  // Not two or three: elements that happen to be close make the variance small and the third
  // derivative, which is the error of a central difference, large.
  for (const std::int64_t width : {1, 7, 37, 65}) {
    CAPTURE(width);
    CHECK(gradcheck(function, {random_tensor(cpu, {2, 5, width}, 1, 2),
                               random_tensor(cpu, {width}, 2), random_tensor(cpu, {width}, 3)}) ==
          "");
  }
}

TEST_CASE("residual_norm has the gradient of both its results", "[gradient]") {
  const auto cpu = device();
  const std::int64_t width = 19;
  const Leaves leaves{random_tensor(cpu, {3, 3, width}, 1), random_tensor(cpu, {3, 3, width}, 2),
                      random_tensor(cpu, {width}, 3), random_tensor(cpu, {width}, 4)};
  const auto norm = [](const Leaves& in) {
    return residual_norm(in[0], in[1], {in[2], in[3]}, 1e-5);
  };
  CHECK(gradcheck([&](const Leaves& in) { return norm(in).normalized; }, leaves) == "");
  CHECK(
      gradcheck(
          [&](const Leaves& in) {
            return residual_norm(in[0], in[1], {leaves[2].detach(), leaves[3].detach()}, 1e-5).sum;
          },
          {leaves[0], leaves[1]}) == "");
  // Both results flow on, as between the two halves of a transformer block.
  CHECK(gradcheck(
            [&](const Leaves& in) {
              const auto first = norm(in);
              return residual_norm(first.sum, gelu(first.normalized), {in[2], in[3]}, 1e-5)
                  .normalized;
            },
            leaves) == "");
  // The same tensor as stream and branch.
  CHECK(gradcheck(
            [&](const Leaves& in) {
              return residual_norm(in[0], in[0], {in[1], in[2]}, 1e-5).normalized;
            },
            {leaves[0], leaves[2], leaves[3]}) == "");
}

TEST_CASE("residual_norm without a branch has the gradient of both its results", "[gradient]") {
  const auto cpu = device();
  const std::int64_t width = 19;
  const Leaves leaves{random_tensor(cpu, {3, 3, width}, 1), random_tensor(cpu, {width}, 2),
                      random_tensor(cpu, {width}, 3)};
  const auto norm = [](const Leaves& in) { return residual_norm(in[0], {}, {in[1], in[2]}, 1e-5); };
  CHECK(gradcheck([&](const Leaves& in) { return norm(in).normalized; }, leaves) == "");
  CHECK(gradcheck(
            [&](const Leaves& in) {
              return norm({in[0], leaves[1].detach(), leaves[2].detach()}).sum;
            },
            {leaves[0]}) == "");
  // Both results flow on, as in the first block of a stage.
  CHECK(gradcheck(
            [&](const Leaves& in) {
              const auto [sum, normalized, recomputable] = norm(in);
              return add(sum, gelu(normalized));
            },
            leaves) == "");
  CHECK(gradcheck(
            [&](const Leaves& in) {
              const auto first = norm({gelu(in[0]), in[1], in[2]});
              return residual_norm(first.sum, gelu(first.normalized), {in[1], in[2]}, 1e-5)
                  .normalized;
            },
            leaves) == "");
}

TEST_CASE("rmsnorm has the gradient of its formula, with and without a residual sum",
          "[gradient]") {
  const auto cpu = device();
  const auto alone = [](const Leaves& in) { return rmsnorm(in[0], in[1], 1e-5); };
  const auto both = [](const Leaves& in) {
    const auto first = residual_norm(in[0], in[1], {in[2], {}, NormKind::rmsnorm}, 1e-5);
    return residual_norm(first.sum, gelu(first.normalized), {in[2], {}, NormKind::rmsnorm}, 1e-5)
        .normalized;
  };
  for (const std::int64_t width : {1, 7, 37, 65}) {
    CAPTURE(width);
    const Leaves leaves{random_tensor(cpu, {2, 5, width}, 1, 2),
                        random_tensor(cpu, {2, 5, width}, 2), random_tensor(cpu, {width}, 3)};
    CHECK(gradcheck(alone, {leaves[0], leaves[2]}) == "");
    CHECK(gradcheck(both, leaves) == "");
  }
  CHECK_THAT(error_message([&] {
               alone({random_tensor(cpu, {2, 4}, 1), random_tensor(cpu, {3}, 2)});
             }),
             Contains("rmsnorm: an input of shape [2, 4] does not fit a weight of shape [3]"));
}

TEST_CASE("layernorm without a bias is that with zeros, and has its gradient", "[gradient]") {
  const auto cpu = device();
  const auto both = [](const Leaves& in) {
    const auto first = residual_norm(in[0], in[1], {in[2]}, 1e-5);
    return residual_norm(first.sum, gelu(first.normalized), {in[2]}, 1e-5).normalized;
  };
  for (const std::int64_t width : {1, 7, 37, 65}) {
    CAPTURE(width);
    const Leaves leaves{random_tensor(cpu, {2, 5, width}, 1, 2),
                        random_tensor(cpu, {2, 5, width}, 2), random_tensor(cpu, {width}, 3)};
    CHECK(gradcheck(both, leaves) == "");
    const Tensor zeros = Tensor::zeros(cpu, {width}, DType::f64);
    CHECK(layernorm(leaves[0], leaves[2], {}, 1e-5).to_host() ==
          layernorm(leaves[0], leaves[2], zeros, 1e-5).to_host());
  }
}

TEST_CASE("residual sums whose inputs are used again keep their gradients apart", "[gradient]") {
  const auto cpu = device();
  const Tensor w = random_tensor(cpu, {5}, 1), bias = random_tensor(cpu, {5}, 2);
  CHECK(gradcheck(
            [&](const Leaves& in) {
              const auto first = residual_norm(in[0], in[1], {w, bias}, 1e-5);
              const auto second = residual_norm(first.sum, in[0], {w, bias}, 1e-5);
              const auto third = residual_norm(in[1], second.sum, {w, bias}, 1e-5);
              const auto fourth = residual_norm(third.sum, first.sum, {w, bias}, 1e-5);
              return residual_norm(fourth.normalized, second.normalized, {w, bias}, 1e-5).sum;
            },
            {random_tensor(cpu, {2, 5}, 3), random_tensor(cpu, {2, 5}, 4)}) == "");
}

TEST_CASE("in_head_order has the gradient of its formula", "[gradient]") {
  const auto cpu = device();
  CHECK(gradcheck([](const Leaves& in) { return in_head_order(in[0], 3); },
                  {random_tensor(cpu, {2, 2, 36}, 1)}) == "");
  CHECK_THAT(error_message([&] {
               in_head_order(random_tensor(cpu, {2, 2, 35}, 1), 3);
             }),
             Contains("shape [2, 2, 35] does not divide into q, k and v of 3 heads"));
}

TEST_CASE("query_key_norm has the gradient of its formula", "[gradient]") {
  const auto cpu = device();
  for (const auto& [heads, width] :
       {std::pair{AttentionHeads{4, 2}, 5}, {{3, 3}, 8}, {{1, 1}, 1}}) {
    CAPTURE(heads.query, heads.key_value, width);
    CHECK(gradcheck(
              [&, divided = heads](const Leaves& in) {
                return query_key_norm(in[0], in[1], in[2], divided, 1e-2);
              },
              {random_tensor(cpu, {2, 3, heads.in_row() * width}, 1, 2),
               random_tensor(cpu, {width}, 2), random_tensor(cpu, {width}, 3)}) == "");
  }
  CHECK_THAT(error_message([&] {
               query_key_norm(random_tensor(cpu, {1, 2, 15}, 1), random_tensor(cpu, {4}, 2),
                              random_tensor(cpu, {4}, 3), {2, 1}, 1e-6);
             }),
             Contains("shape [1, 2, 15] with 2 heads of q and 1 of k and v"));
}

}  // namespace
}  // namespace sluice::test::norm_gradient_test
