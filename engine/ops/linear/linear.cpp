#include "engine/ops/linear/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/reduce.h"

namespace sluice {
namespace {

class LinearNode final : public Node {
 public:
  LinearNode(Recomputable x, Recomputable weight, const LinearOptions& options)
      : x_(std::move(x)),
        weight_(std::move(weight)),
        layout_(options.layout),
        columns_(options.columns),
        rows_(options.rows),
        tokens_(options.tokens) {}

  std::string_view name() const override { return "linear"; }
  std::vector<SavedTensor> saved() const override {
    auto list = x_.saved("x");
    std::ranges::move(weight_.saved("weight"), std::back_inserter(list));
    return list;
  }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const Tensor grad = rows_ != nullptr
                            ? rows_->all_gather(grad_outputs[0], tokens_, "output gradient")
                            : grad_outputs[0];
    Tensor grad_x, x;
    std::function<Tensor()> sum;
    if (pass.wants(0)) grad_x = input_gradient(grad, weight_(), layout_, grad.shape());
    // Collects x before the sum starts, because the sum would delay it.
    if (pass.wants(1))
      x = columns_ != nullptr ? columns_->all_gather(x_(), tokens_, "input") : x_();
    if (grad_x && columns_ != nullptr)
      sum = columns_->all_reduce(std::exchange(grad_x, {}), tokens_, "input gradient");
    add_weight_gradients(1, layout_, x, grad, pass);
    if (sum) grad_x = sum();
    if (grad_x) pass.give(0, grad_x);
  }

 private:
  Recomputable x_, weight_;
  WeightLayout layout_;
  TensorGroup *columns_, *rows_;
  Shape tokens_;
};

Shape with_last(Shape shape, std::int64_t width) {
  shape.back() = width;
  return shape;
}

void require_width(const Tensor& x, std::int64_t width, const Tensor& weight) {
  if (x.dim(-1) != width)
    fail(fmt::format("linear: an input of shape {} does not fit a weight of shape {}",
                     to_string(x.shape()), to_string(weight.shape())));
}

}  // namespace

std::int64_t inputs_of(const Tensor& weight, WeightLayout layout) {
  return weight.dim(layout == WeightLayout::in_out ? 0 : 1);
}
std::int64_t outputs_of(const Tensor& weight, WeightLayout layout) {
  return weight.dim(layout == WeightLayout::in_out ? 1 : 0);
}

Gemm product(const View& out, const View& x, const Tensor& weight, WeightLayout layout) {
  return {.out = out,
          .a = x,
          .b = weight.view(),
          .transpose_b = layout == WeightLayout::out_in,
          .tf32 = weight.device()->tf32()};
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const LinearOptions& options) {
  const std::int64_t in = inputs_of(weight, options.layout);
  const std::int64_t out = outputs_of(weight, options.layout);
  require_width(x, in, weight);
  const Tensor all =
      options.columns != nullptr ? options.columns->all_gather(x, options.tokens, "input") : x;
  const std::int64_t rows = all.size() / in;
  Tensor result = Tensor::empty(x.device(), with_last(all.shape(), out), x.dtype());
  const bool adds_bias = bias && (options.rows == nullptr || options.rows->rank() == 0);
  Gemm gemm = product(result.view({rows, out}), all.view({rows, in}), weight, options.layout);
  if (adds_bias) gemm.bias = bias.view();
  run(gemm, x.stream());
  if (options.rows != nullptr)
    result = options.rows->all_reduce(std::exchange(result, {}), options.tokens, "output")();
  if (!recording({x, weight, bias})) return result;
  // A frozen weight's gradient is not computed, so x is not kept for it.
  Recomputable kept;
  if (weight.requires_grad()) kept = options.recomputable ? options.recomputable : Recomputable(x);
  attach(std::make_shared<LinearNode>(kept, options.weight ? options.weight : Recomputable(weight),
                                      options),
         {x, weight, bias}, result);
  return result;
}

Tensor logits_of(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const std::int64_t in = weight.dim(1);
  const std::int64_t out = weight.dim(0);
  require_width(x, in, weight);
  const std::int64_t rows = x.size() / in;
  // The products of the spare rows lie behind the row. With several rows they would lie between.
  const Tensor used = rows == 1 ? weight.with_spare_rows() : weight;
  Tensor result =
      Tensor::empty(x.device(), with_last(x.shape(), used.dim(0)), accumulator_of(x.dtype()));
  run(product(result.view({rows, used.dim(0)}), x.view({rows, in}), used, WeightLayout::out_in),
      x.stream());
  result = result.slice(0, with_last(x.shape(), out));
  if (bias) run(AddRow{.matrix = result.view({rows, out}), .row = bias.view()}, x.stream());
  return result;
}

Tensor input_gradient(const Tensor& grad, const Tensor& weight, WeightLayout layout, Shape tokens) {
  const std::int64_t in = inputs_of(weight, layout);
  const std::int64_t out = outputs_of(weight, layout);
  const std::int64_t rows = grad.size() / out;
  Tensor result = Tensor::empty(grad.device(), with_last(std::move(tokens), in), grad.dtype());
  run(Gemm{.out = result.view({rows, in}),
           .a = grad.view({rows, out}),
           .b = weight.view(),
           .transpose_b = layout == WeightLayout::in_out,
           .tf32 = grad.device()->tf32()},
      grad.stream());
  return result;
}

void add_weight_gradients(std::size_t weight, WeightLayout layout, const Tensor& x,
                          const Tensor& grad, Backward& pass) {
  const DType sums = accumulator_of(grad.dtype());
  const auto rows_of = [](const Tensor& of, std::int64_t rows) {
    return of.view({rows, of.size() / rows});
  };
  if (pass.wants(weight))
    pass.contribute(weight, sums, [=](const GradientTarget& target) {
      const std::int64_t rows = grad.size() / grad.dim(-1);
      const bool in_out = layout == WeightLayout::in_out;
      run(Gemm{.out = target.tensor.view(),
               .a = rows_of(in_out ? x : grad, rows),
               .b = rows_of(in_out ? grad : x, rows),
               .transpose_a = true,
               .accumulate = target.accumulate,
               .tf32 = grad.device()->tf32()},
          grad.stream());
    });
  if (pass.wants(weight + 1))
    pass.contribute(weight + 1, sums, [=](const GradientTarget& target) {
      run(ColumnSum{.out = target.tensor.view(),
                    .in = rows_of(grad, grad.size() / grad.dim(-1)),
                    .accumulate = target.accumulate},
          grad.stream());
    });
}

}  // namespace sluice
