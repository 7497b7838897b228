#include "engine/ops/norm.h"

#include <fmt/format.h>

#include <utility>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/norm.h"

namespace sluice {
namespace {

View view_or_none(const Tensor& tensor) {
  return tensor ? tensor.view() : View{};
}

/// Inputs of the node: weight, bias (or none), then the addends: x alone, or stream and
/// branch, which receive the same gradient.
class NormNode final : public Node {
 public:
  /// RMSNorm has no mean.
  NormNode(Tensor in, const NormWeights& weights, Tensor mean, Tensor rstd, TensorGroup* group)
      : in_(std::move(in)),
        weight_(weights.weight),
        has_bias_(weights.bias),
        mean_(std::move(mean)),
        rstd_(std::move(rstd)),
        group_(group) {}

  std::string_view name() const override { return mean_ ? "layernorm" : "rmsnorm"; }
  std::vector<SavedTensor> saved() const override {
    std::vector<SavedTensor> list{{"in", in_}, {"weight", weight_}, {"rstd", rstd_}};
    if (mean_) list.push_back({"mean", mean_});
    return list;
  }

  /// Output 0 is the normalized tensor, output 1 the sum.
  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const Tensor& grad_out = grad_outputs[0];
    const Tensor& grad_sum = grad_outputs[1];
    if (!grad_out) return give_to_addends(grad_sum, pass);
    const DType sums = accumulator_of(in_.dtype());
    Tensor grad_in = Tensor::empty_like(in_);
    // The ranks' gradients of weight and bias are summed in one operation.
    const std::int64_t parameters = has_bias_ ? 2 : 1;
    Tensor all;
    if (group_ != nullptr) all = Tensor::empty(in_.device(), {parameters, weight_.size()}, sums);
    const auto part = [&](std::int64_t input) {
      return all.slice(input * weight_.size(), weight_.shape());
    };
    const auto place = [&](std::int64_t input) {
      if (group_ != nullptr) return GradientTarget{part(input), false};
      return target_or_scratch(static_cast<std::size_t>(input), sums, pass);
    };
    const GradientTarget weight = place(0), bias = has_bias_ ? place(1) : GradientTarget{};
    run(NormBackward{.grad_in = grad_in.view(),
                     .grad_weight = weight.tensor.view(),
                     .grad_bias = view_or_none(bias.tensor),
                     .grad_out = grad_out.view(),
                     .grad_sum = view_or_none(grad_sum),
                     .normalized_in = in_.view(),
                     .mean = view_or_none(mean_),
                     .rstd = rstd_.view(),
                     .weight = weight_.view(),
                     .accumulate_weight = weight.accumulate,
                     .accumulate_bias = bias.accumulate},
        in_.stream());
    if (group_ != nullptr) {
      all = group_->all_reduce(std::exchange(all, {}), {}, "norm gradient")();
      for (std::int64_t input = 0; input < parameters; ++input)
        if (pass.wants(static_cast<std::size_t>(input)))
          pass.give(static_cast<std::size_t>(input), part(input));
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

  Tensor in_, weight_;
  bool has_bias_;
  Tensor mean_, rstd_;
  TensorGroup* group_;
};

}  // namespace

Tensor layernorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  return residual_norm(x, {}, {weight, bias}, epsilon).normalized;
}

Tensor rmsnorm(const Tensor& x, const Tensor& weight, double epsilon) {
  return residual_norm(x, {}, {weight, {}, NormKind::rmsnorm}, epsilon).normalized;
}

ResidualNorm residual_norm(const Tensor& stream, const Tensor& branch, const NormWeights& weights,
                           double epsilon, TensorGroup* group) {
  const Tensor &weight = weights.weight, &bias = weights.bias;
  const bool centred = weights.kind == NormKind::layernorm;
  if (stream.dim(-1) != weight.size())
    fail(fmt::format("{}: an input of shape {} does not fit a weight of shape {}",
                     centred ? "layernorm" : "rmsnorm", to_string(stream.shape()),
                     to_string(weight.shape())));
  check(!branch || stream.shape() == branch.shape(),
        "a residual branch must have the shape of its stream");
  ResidualNorm result{branch ? Tensor::empty_like(stream) : stream, Tensor::empty_like(stream)};
  const Shape rows{stream.size() / stream.dim(-1)};
  const DType sums = accumulator_of(stream.dtype());
  const Tensor mean = centred ? Tensor::empty(stream.device(), rows, sums) : Tensor();
  const Tensor rstd = Tensor::empty(stream.device(), rows, sums);
  const auto forward = [=](const Tensor& in, const Tensor& out) {
    return NormForward{.out = out.view(),
                       .mean = view_or_none(mean),
                       .rstd = rstd.view(),
                       .in = in.view(),
                       .weight = weight.view(),
                       .bias = view_or_none(bias),
                       .epsilon = epsilon};
  };
  NormForward op = forward(stream, result.normalized);
  if (branch) {
    op.sum = result.sum.view();
    op.branch = branch.view();
  }
  run(op, stream.stream());
  if (!recording({stream, branch, weight, bias})) return result;
  const Tensor in = branch ? result.sum.detach() : stream;
  std::vector<SavedTensor> kept{{"in", in}, {"weight", weight}, {"rstd", rstd}};
  if (bias) kept.push_back({"bias", bias});
  if (mean) kept.push_back({"mean", mean});
  result.recomputable = Recomputable(std::move(kept), [in, forward] {
    // The statistics are those of the sum as it was stored, so the same kernel computes the same
    // ones again.
    Tensor out = Tensor::empty_like(in);
    run(forward(in, out), in.stream());
    return out;
  });
  const auto node = std::make_shared<NormNode>(in, weights, mean, rstd, group);
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
