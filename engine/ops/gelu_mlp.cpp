#include "engine/ops/gelu_mlp.h"

#include <fmt/format.h>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/column_sum.h"
#include "kernels/gemm.h"

namespace sluice {
namespace {

/// Inputs: x, weight_in, bias_in, weight_out, bias_out.
class GeluMlpNode final : public Node {
 public:
  GeluMlpNode(Tensor x, Tensor pre_activation, Tensor hidden, const GeluMlpWeights& weights)
      : x_(std::move(x)),
        pre_activation_(std::move(pre_activation)),
        hidden_(std::move(hidden)),
        weights_(weights) {}

  std::string_view name() const override { return "gelu_mlp"; }
  std::vector<SavedTensor> saved() const override {
    return {{"x", x_},
            {"pre_activation", pre_activation_},
            {"hidden", hidden_},
            {"weight_in", weights_.weight_in},
            {"weight_out", weights_.weight_out}};
  }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const std::int64_t in = weights_.weight_in.dim(0);
    const std::int64_t width = weights_.weight_in.dim(1);
    const std::int64_t out = weights_.weight_out.dim(1);
    const std::int64_t rows = x_.size() / in;
    const View grad = grad_outputs[0].view({rows, out});
    const bool tf32 = x_.device()->tf32();
    // What went in, the gradient of what came out, and where the two belong.
    add_weight_gradients(3, hidden_.view({rows, width}), grad, pass);
    const Tensor grad_hidden = Tensor::empty(x_.device(), {rows, width}, x_.dtype());
    run(Gemm{.out = grad_hidden.view(),
             .a = grad,
             .b = weights_.weight_out.view(),
             .transpose_b = true,
             .gelu_input = pre_activation_.view({rows, width}),
             .tf32 = tf32},
        x_.stream());
    add_weight_gradients(1, x_.view({rows, in}), grad_hidden.view(), pass);
    if (!pass.wants(0)) return;
    const Tensor grad_x = Tensor::empty(x_.device(), x_.shape(), x_.dtype());
    run(Gemm{.out = grad_x.view({rows, in}),
             .a = grad_hidden.view(),
             .b = weights_.weight_in.view(),
             .transpose_b = true,
             .tf32 = tf32},
        x_.stream());
    pass.give(0, grad_x);
  }

 private:
  /// Of the weight that is input `weight` and the bias that follows it.
  void add_weight_gradients(std::size_t weight, const View& in, const View& grad,
                            Backward& pass) const {
    const DType sums = accumulator_of(x_.dtype());
    if (pass.wants(weight)) {
      const auto target = pass.target(weight, sums);
      run(Gemm{.out = target.tensor.view(),
               .a = in,
               .b = grad,
               .transpose_a = true,
               .accumulate = target.accumulate,
               .tf32 = x_.device()->tf32()},
          x_.stream());
    }
    if (pass.wants(weight + 1)) {
      const auto target = pass.target(weight + 1, sums);
      run(ColumnSum{.out = target.tensor.view(), .in = grad, .accumulate = target.accumulate},
          x_.stream());
    }
  }

  Tensor x_, pre_activation_, hidden_;
  GeluMlpWeights weights_;
};

}  // namespace

Tensor gelu_mlp(const Tensor& x, const GeluMlpWeights& weights) {
  const std::int64_t in = weights.weight_in.dim(0);
  const std::int64_t width = weights.weight_in.dim(1);
  const std::int64_t out = weights.weight_out.dim(1);
  if (x.dim(-1) != in || weights.weight_out.dim(0) != width)
    fail(
        fmt::format("gelu_mlp: an input of shape {} and weights of shapes {} and {} do not fit "
                    "together",
                    to_string(x.shape()), to_string(weights.weight_in.shape()),
                    to_string(weights.weight_out.shape())));
  const std::int64_t rows = x.size() / in;
  const bool tf32 = x.device()->tf32();
  const Tensor pre_activation = Tensor::empty(x.device(), {rows, width}, x.dtype());
  const Tensor hidden = Tensor::empty(x.device(), {rows, width}, x.dtype());
  run(Gemm{.out = hidden.view(),
           .a = x.view({rows, in}),
           .b = weights.weight_in.view(),
           .bias = weights.bias_in.view(),
           .pre_activation = pre_activation.view(),
           .tf32 = tf32},
      x.stream());
  Shape shape = x.shape();
  shape.back() = out;
  Tensor result = Tensor::empty(x.device(), shape, x.dtype());
  run(Gemm{.out = result.view({rows, out}),
           .a = hidden.view(),
           .b = weights.weight_out.view(),
           .bias = weights.bias_out.view(),
           .tf32 = tf32},
      x.stream());
  if (recording({x, weights.weight_in, weights.bias_in, weights.weight_out, weights.bias_out})) {
    Tensor* const outputs[] = {&result};
    attach(std::make_shared<GeluMlpNode>(x, pre_activation, hidden, weights),
           {x, weights.weight_in, weights.bias_in, weights.weight_out, weights.bias_out}, outputs);
  }
  return result;
}

}  // namespace sluice
