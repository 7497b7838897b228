#include "engine/ops/linear/mlp.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "engine/autograd.h"
#include "engine/ops/linear/activation.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"

namespace sluice {
namespace {

std::string_view name_of(MlpActivation activation) {
  return activation == MlpActivation::swiglu ? "swiglu_mlp"
         : activation == MlpActivation::relu ? "relu_mlp"
                                             : "gelu_mlp";
}

/// Inputs of the node: x, weight_in, bias_in, weight_out, bias_out.
class MlpNode final : public Node {
 public:
  /// If `hidden` is none, backward recomputes it.
  MlpNode(Recomputable x, Tensor pre_activation, Tensor hidden, const MlpWeights& weights,
          const MlpGroup& ranks)
      : x_(std::move(x)),
        pre_activation_(std::move(pre_activation)),
        hidden_(std::move(hidden)),
        weights_(weights),
        ranks_(ranks) {}

  std::string_view name() const override { return name_of(weights_.activation); }
  std::vector<SavedTensor> saved() const override {
    auto list = x_.saved("x");
    list.push_back({"pre_activation", pre_activation_});
    if (hidden_) list.push_back({"hidden", hidden_});
    list.push_back({"weight_in", weights_.weight_in});
    list.push_back({"weight_out", weights_.weight_out});
    return list;
  }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    TensorGroup* const group = ranks_.group;
    const WeightLayout layout = weights_.layout;
    const Tensor grad_out =
        group != nullptr ? group->all_gather(grad_outputs[0], ranks_.tokens, "output gradient")
                         : grad_outputs[0];
    Tensor x;
    if (pass.wants(1))
      x = group != nullptr ? group->all_gather(x_(), ranks_.tokens, "input") : x_();
    add_weight_gradients(3, layout, hidden_ || !pass.wants(3) ? hidden_ : hidden_again(), grad_out,
                         pass);
    const Tensor grad_in = pre_activation_gradient(grad_out);
    if (group == nullptr) {
      add_weight_gradients(1, layout, x, grad_in, pass);
      x = {};
      if (pass.wants(0))
        pass.give(0, input_gradient(grad_in, weights_.weight_in, layout, grad_out.shape()));
      return;
    }
    std::function<Tensor()> sum;
    if (pass.wants(0))
      sum = group->all_reduce(input_gradient(grad_in, weights_.weight_in, layout, grad_out.shape()),
                              ranks_.tokens, "input gradient");
    add_weight_gradients(1, layout, x, grad_in, pass);
    if (sum) pass.give(0, sum());
  }

 private:
  /// The forward pass applies the same kernel, or the same function to its rounded product, so this
  /// gives the same bits.
  Tensor hidden_again() const {
    const Tensor hidden = empty_activated(pre_activation_, weights_.activation);
    activate(hidden, pre_activation_, weights_.activation);
    return hidden;
  }

  Tensor pre_activation_gradient(const Tensor& grad_out) const {
    const std::int64_t rows = pre_activation_.dim(0);
    if (weights_.activation == MlpActivation::gelu) {
      const Tensor gradient = Tensor::empty_like(pre_activation_);
      run(Gemm{.out = gradient.view(),
               .a = grad_out.view({rows, outputs_of(weights_.weight_out, weights_.layout)}),
               .b = weights_.weight_out.view(),
               .transpose_b = weights_.layout == WeightLayout::in_out,
               .gelu_input = pre_activation_.view(),
               .tf32 = grad_out.device()->tf32()},
          grad_out.stream());
      return gradient;
    }
    const Tensor grad_hidden =
        input_gradient(grad_out, weights_.weight_out, weights_.layout, {rows, 1});
    const bool halves = weights_.activation == MlpActivation::swiglu;
    const Tensor gradient = halves ? Tensor::empty_like(pre_activation_) : grad_hidden;
    activation_gradient(gradient, grad_hidden, pre_activation_, weights_.activation);
    return gradient.reshape(pre_activation_.shape());
  }

  Recomputable x_;
  Tensor pre_activation_, hidden_;
  MlpWeights weights_;
  MlpGroup ranks_;
};

}  // namespace

Tensor mlp(const Tensor& x, const MlpWeights& weights, const MlpRecompute& recompute,
           const MlpGroup& ranks) {
  const bool gated = weights.activation == MlpActivation::swiglu;
  // Only this activation comes with its product.
  const bool fused = weights.activation == MlpActivation::gelu;
  const std::int64_t in = inputs_of(weights.weight_in, weights.layout);
  const std::int64_t width = outputs_of(weights.weight_in, weights.layout);
  const std::int64_t out = outputs_of(weights.weight_out, weights.layout);
  if (x.dim(-1) != in || inputs_of(weights.weight_out, weights.layout) * (gated ? 2 : 1) != width)
    fail(fmt::format("{}: an input of shape {} and weights of shapes {} and {} do not fit together",
                     name_of(weights.activation), to_string(x.shape()),
                     to_string(weights.weight_in.shape()), to_string(weights.weight_out.shape())));
  TensorGroup* const group = ranks.group;
  const Tensor all = group != nullptr ? group->all_gather(x, ranks.tokens, "input") : x;
  const std::int64_t rows = all.size() / in;
  const Tensor pre_activation = Tensor::empty(x.device(), {rows, width}, x.dtype());
  const Tensor hidden = empty_activated(pre_activation, weights.activation);
  Gemm first = product(fused ? hidden.view() : pre_activation.view(), all.view({rows, in}),
                       weights.weight_in, weights.layout);
  if (weights.bias_in) first.bias = weights.bias_in.view();
  if (fused) first.pre_activation = pre_activation.view();
  run(first, x.stream());
  if (!fused) activate(hidden, pre_activation, weights.activation);
  Shape shape = all.shape();
  shape.back() = out;
  Tensor result = Tensor::empty(x.device(), shape, x.dtype());
  Gemm second =
      product(result.view({rows, out}), hidden.view(), weights.weight_out, weights.layout);
  if (weights.bias_out && (group == nullptr || group->rank() == 0))
    second.bias = weights.bias_out.view();
  run(second, x.stream());
  if (group != nullptr)
    result = group->all_reduce(std::exchange(result, {}), ranks.tokens, "output")();
  const std::vector<Tensor> inputs{x, weights.weight_in, weights.bias_in, weights.weight_out,
                                   weights.bias_out};
  if (!recording(inputs)) return result;
  // A frozen weight's gradient is not computed, so nothing is kept for it.
  const bool keeps_hidden = weights.weight_out.requires_grad() && !recompute.hidden;
  Recomputable kept_x;
  if (weights.weight_in.requires_grad()) kept_x = recompute.x ? recompute.x : Recomputable(x);
  attach(std::make_shared<MlpNode>(kept_x, pre_activation, keeps_hidden ? hidden : Tensor(),
                                   weights, ranks),
         inputs, result);
  return result;
}

}  // namespace sluice
