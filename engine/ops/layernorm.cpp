#include "engine/ops/layernorm.h"

#include <fmt/format.h>

#include <utility>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/layernorm.h"

namespace sluice {
namespace {

/// Inputs of the node: weight, bias, then the addends: x alone, or stream and branch, which receive
/// the same gradient.
class LayerNormNode final : public Node {
 public:
  LayerNormNode(Tensor in, Tensor weight, Tensor mean, Tensor rstd, TensorGroup* group)
      : in_(std::move(in)),
        weight_(std::move(weight)),
        mean_(std::move(mean)),
        rstd_(std::move(rstd)),
        group_(group) {}

  std::string_view name() const override { return "layernorm"; }
  std::vector<SavedTensor> saved() const override {
    return {{"in", in_}, {"weight", weight_}, {"mean", mean_}, {"rstd", rstd_}};
  }

  /// Output 0 is the normalized tensor, output 1 the sum.
  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const Tensor& grad_out = grad_outputs[0];
    const Tensor& grad_sum = grad_outputs[1];
    if (!grad_out) return give_to_addends(grad_sum, pass);
    const DType sums = accumulator_of(in_.dtype());
    Tensor grad_in = Tensor::empty(in_.device(), in_.shape(), in_.dtype());
    // The ranks' gradients of weight and bias are summed in one operation.
    Tensor both;
    if (group_ != nullptr) both = Tensor::empty(in_.device(), {2, weight_.size()}, sums);
    const auto place = [&](std::size_t input) {
      if (group_ == nullptr) return target_or_scratch(input, sums, pass);
      const auto first = static_cast<std::int64_t>(input) * weight_.size();
      return GradientTarget{both.slice(first, weight_.shape()), false};
    };
    const auto weight = place(0), bias = place(1);
    run(LayerNormBackward{.grad_in = grad_in.view(),
                          .grad_weight = weight.tensor.view(),
                          .grad_bias = bias.tensor.view(),
                          .grad_out = grad_out.view(),
                          .grad_sum = grad_sum ? grad_sum.view() : View{},
                          .normalized_in = in_.view(),
                          .mean = mean_.view(),
                          .rstd = rstd_.view(),
                          .weight = weight_.view(),
                          .accumulate_weight = weight.accumulate,
                          .accumulate_bias = bias.accumulate},
        in_.stream());
    if (group_ != nullptr) {
      both = group_->all_reduce(std::exchange(both, {}), {}, "norm gradient")();
      for (const std::size_t input : {std::size_t{0}, std::size_t{1}})
        if (pass.wants(input))
          pass.give(input,
                    both.slice(static_cast<std::int64_t>(input) * weight_.size(), weight_.shape()));
    }
    give_to_addends(grad_in, pass);
  }

 private:
  void give_to_addends(const Tensor& gradient, Backward& pass) const {
    for (std::size_t input = 2; input < inputs().size(); ++input)
      pass.give(input, gradient);
  }
  GradientTarget target_or_scratch(std::size_t input, DType dtype, Backward& pass) const {
    if (pass.wants(input)) return pass.target(input, dtype);
    return {Tensor::empty(weight_.device(), weight_.shape(), dtype), false};
  }

  Tensor in_, weight_, mean_, rstd_;
  TensorGroup* group_;
};

Tensor like(const Tensor& x) {
  return Tensor::empty(x.device(), x.shape(), x.dtype());
}

}  // namespace

Tensor layernorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  return residual_layernorm(x, {}, weight, bias, epsilon).normalized;
}

ResidualNorm residual_layernorm(const Tensor& stream, const Tensor& branch, const Tensor& weight,
                                const Tensor& bias, double epsilon, TensorGroup* group) {
  if (stream.dim(-1) != weight.size())
    fail(fmt::format("layernorm: an input of shape {} does not fit a weight of shape {}",
                     to_string(stream.shape()), to_string(weight.shape())));
  check(!branch || stream.shape() == branch.shape(),
        "a residual branch must have the shape of its stream");
  ResidualNorm result{branch ? like(stream) : stream, like(stream)};
  const Shape rows{stream.size() / stream.dim(-1)};
  const DType sums = accumulator_of(stream.dtype());
  const Tensor mean = Tensor::empty(stream.device(), rows, sums);
  const Tensor rstd = Tensor::empty(stream.device(), rows, sums);
  LayerNormForward forward{.out = result.normalized.view(),
                           .mean = mean.view(),
                           .rstd = rstd.view(),
                           .in = stream.view(),
                           .weight = weight.view(),
                           .bias = bias.view(),
                           .epsilon = epsilon};
  if (branch) {
    forward.sum = result.sum.view();
    forward.branch = branch.view();
  }
  run(forward, stream.stream());
  if (!recording({stream, branch, weight, bias})) return result;
  const Tensor in = branch ? result.sum.detach() : stream;
  result.recomputable =
      Recomputable({{"in", in}, {"weight", weight}, {"bias", bias}, {"mean", mean}, {"rstd", rstd}},
                   [in, mean, rstd, weight, bias, epsilon] {
                     // The statistics are those of the sum as it was stored, so the same kernel
                     // computes the same ones again.
                     Tensor out = like(in);
                     run(LayerNormForward{.out = out.view(),
                                          .mean = mean.view(),
                                          .rstd = rstd.view(),
                                          .in = in.view(),
                                          .weight = weight.view(),
                                          .bias = bias.view(),
                                          .epsilon = epsilon},
                         in.stream());
                     return out;
                   });
  const auto node = std::make_shared<LayerNormNode>(in, weight, mean, rstd, group);
  // The gradients of both outputs are combined in one pass, with the same rounding whether the
  // stream was summed here or before.
  if (!branch) result.sum = stream.detach();
  std::vector<Tensor> inputs{weight, bias, stream};
  if (branch) inputs.push_back(branch);
  Tensor* const outputs[] = {&result.normalized, &result.sum};
  attach(node, inputs, outputs);
  return result;
}

}  // namespace sluice
