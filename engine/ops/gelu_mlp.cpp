#include "engine/ops/gelu_mlp.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "engine/autograd.h"
#include "engine/ops/linear.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"

namespace sluice {
namespace {

/// Inputs of the node: x, weight_in, bias_in, weight_out, bias_out.
class GeluMlpNode final : public Node {
 public:
  /// If `hidden` is none, backward recomputes it.
  GeluMlpNode(Recomputable x, Tensor pre_activation, Tensor hidden, const GeluMlpWeights& weights,
              const GeluMlpGroup& ranks)
      : x_(std::move(x)),
        pre_activation_(std::move(pre_activation)),
        hidden_(std::move(hidden)),
        weights_(weights),
        ranks_(ranks) {}

  std::string_view name() const override { return "gelu_mlp"; }
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
    const Tensor grad_out =
        group != nullptr ? group->all_gather(grad_outputs[0], ranks_.tokens, "output gradient")
                         : grad_outputs[0];
    Tensor x = group != nullptr ? group->all_gather(x_(), ranks_.tokens, "input") : x_();
    add_weight_gradients(3, hidden_ ? hidden_ : hidden_again(), grad_out, pass);
    const Tensor grad_hidden = like_hidden();
    run(Gemm{.out = grad_hidden.view(),
             .a = grad_out.view({grad_hidden.dim(0), weights_.weight_out.dim(1)}),
             .b = weights_.weight_out.view(),
             .transpose_b = true,
             .gelu_input = pre_activation_.view(),
             .tf32 = grad_out.device()->tf32()},
        grad_out.stream());
    if (group == nullptr) {
      add_weight_gradients(1, x, grad_hidden, pass);
      x = {};
      if (pass.wants(0))
        pass.give(0, input_gradient(grad_hidden, weights_.weight_in, grad_out.shape()));
      return;
    }
    std::function<Tensor()> sum;
    if (pass.wants(0))
      sum = group->all_reduce(input_gradient(grad_hidden, weights_.weight_in, grad_out.shape()),
                              ranks_.tokens, "input gradient");
    add_weight_gradients(1, x, grad_hidden, pass);
    if (sum) pass.give(0, sum());
  }

 private:
  Tensor like_hidden() const {
    return Tensor::empty(pre_activation_.device(), pre_activation_.shape(),
                         pre_activation_.dtype());
  }

  /// The forward product applies the GELU to its rounded result, so the kernel gives the same bits.
  Tensor hidden_again() const {
    Tensor hidden = like_hidden();
    run(GeluForward{.out = hidden.view(), .in = pre_activation_.view()}, hidden.stream());
    return hidden;
  }

  Recomputable x_;
  Tensor pre_activation_, hidden_;
  GeluMlpWeights weights_;
  GeluMlpGroup ranks_;
};

}  // namespace

Tensor gelu_mlp(const Tensor& x, const GeluMlpWeights& weights, const GeluMlpRecompute& recompute,
                const GeluMlpGroup& ranks) {
  const std::int64_t in = weights.weight_in.dim(0);
  const std::int64_t width = weights.weight_in.dim(1);
  const std::int64_t out = weights.weight_out.dim(1);
  if (x.dim(-1) != in || weights.weight_out.dim(0) != width)
    fail(
        fmt::format("gelu_mlp: an input of shape {} and weights of shapes {} and {} do not fit "
                    "together",
                    to_string(x.shape()), to_string(weights.weight_in.shape()),
                    to_string(weights.weight_out.shape())));
  TensorGroup* const group = ranks.group;
  const Tensor all = group != nullptr ? group->all_gather(x, ranks.tokens, "input") : x;
  const std::int64_t rows = all.size() / in;
  const Tensor pre_activation = Tensor::empty(x.device(), {rows, width}, x.dtype());
  const Tensor hidden = Tensor::empty(x.device(), {rows, width}, x.dtype());
  run(Gemm{.out = hidden.view(),
           .a = all.view({rows, in}),
           .b = weights.weight_in.view(),
           .bias = weights.bias_in.view(),
           .pre_activation = pre_activation.view(),
           .tf32 = x.device()->tf32()},
      x.stream());
  Shape shape = all.shape();
  shape.back() = out;
  Tensor result = Tensor::empty(x.device(), shape, x.dtype());
  run(Gemm{.out = result.view({rows, out}),
           .a = hidden.view(),
           .b = weights.weight_out.view(),
           .bias = group == nullptr || group->rank() == 0 ? weights.bias_out.view() : View{},
           .tf32 = x.device()->tf32()},
      x.stream());
  if (group != nullptr)
    result = group->all_reduce(std::exchange(result, {}), ranks.tokens, "output")();
  if (recording({x, weights.weight_in, weights.bias_in, weights.weight_out, weights.bias_out}))
    attach(
        std::make_shared<GeluMlpNode>(recompute.x ? recompute.x : Recomputable(x), pre_activation,
                                      recompute.gelu ? Tensor() : hidden, weights, ranks),
        {x, weights.weight_in, weights.bias_in, weights.weight_out, weights.bias_out}, result);
  return result;
}

}  // namespace sluice
