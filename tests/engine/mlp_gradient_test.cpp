#include "engine/ops/linear/mlp.h"

#include "engine/autograd.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/linear/linear.h"
#include "kernels/swiglu.h"
#include "tests/engine/gradient_leaves.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::mlp_gradient_test {
namespace {

Tensor swiglu_of(const Tensor& in) {
  const Tensor out = Tensor::empty(in.device(), {in.dim(0), in.dim(1) / 2}, in.dtype());
  launch_cpu(SwigluForward{.out = out.view(), .in = in.view()});
  return out;
}

Tensor exact_gelu_of(const Tensor& in) {
  const Tensor out = Tensor::empty_like(in);
  launch_cpu(GeluForward{.out = out.view(), .in = in.view(), .exact = true});
  return out;
}

Tensor activated(const Tensor& in, MlpActivation activation) {
  switch (activation) {
    case MlpActivation::gelu:
      return gelu(in);
    case MlpActivation::exact_gelu:
      return exact_gelu_of(in);
    case MlpActivation::relu:
      return relu(in);
    case MlpActivation::swiglu:
      return swiglu_of(in);
  }
  return {};
}

Shape stored(std::int64_t in, std::int64_t out, WeightLayout layout) {
  return layout == WeightLayout::in_out ? Shape{in, out} : Shape{out, in};
}

}  // namespace

TEST_CASE("mlp has the gradient of its formula, and is its three parts", "[gradient]") {
  const auto cpu = device();
  for (const MlpActivation activation :
       {MlpActivation::gelu, MlpActivation::exact_gelu, MlpActivation::relu, MlpActivation::swiglu})
    for (const WeightLayout layout : {WeightLayout::in_out, WeightLayout::out_in})
      for (const auto& [rows, in, width, out] :
           {std::array<std::int64_t, 4>{1, 1, 1, 1}, {6, 5, 19, 7}, {35, 33, 65, 33}}) {
        if (!in_form(2, {static_cast<int>(activation), layout == WeightLayout::in_out, rows}))
          continue;
        const std::int64_t first = activation == MlpActivation::swiglu ? 2 * width : width;
        const auto weights = [=](const Leaves& leaf) {
          return MlpWeights{.weight_in = leaf[1],
                            .bias_in = leaf[2],
                            .weight_out = leaf[3],
                            .bias_out = leaf[4],
                            .layout = layout,
                            .activation = activation};
        };
        const auto fused = [=](const Leaves& leaf) { return mlp(leaf[0], weights(leaf)); };
        CAPTURE(rows, in, width, out, static_cast<int>(activation), layout == WeightLayout::in_out);
        const Leaves leaves{
            random_tensor(cpu, {rows, in}, 1), random_tensor(cpu, stored(in, first, layout), 2),
            random_tensor(cpu, {first}, 3), random_tensor(cpu, stored(width, out, layout), 4),
            random_tensor(cpu, {out}, 5)};
        CHECK(gradcheck(fused, leaves) == "");
        CHECK(gradcheck(
                  [=](const Leaves& leaf) {
                    return fused({leaf[0], leaf[1], {}, leaf[2], {}});
                  },
                  {leaves[0], leaves[1], leaves[3]}) == "");
        const Tensor pre = linear(leaves[0], leaves[1], leaves[2], {.layout = layout});
        CHECK(
            fused(leaves).to_host() ==
            linear(activated(pre, activation), leaves[3], leaves[4], {.layout = layout}).to_host());
        // A hidden row that backward computes again changes no bit.
        Values gradients[2];
        for (const bool recompute : {false, true}) {
          Leaves own;
          for (const Tensor& leaf : leaves)
            own.push_back(Tensor::from_host(cpu, leaf.shape(), DType::f64, leaf.to_host())
                              .set_requires_grad(true));
          const Tensor result = mlp(own[0], weights(own), {.hidden = recompute});
          backward(result, random_tensor(cpu, result.shape(), 6));
          for (const Tensor& leaf : own)
            for (const double value : leaf.grad().to_host())
              gradients[recompute ? 1 : 0].push_back(value);
        }
        CHECK(gradients[0] == gradients[1]);
      }
}

}  // namespace sluice::test::mlp_gradient_test
