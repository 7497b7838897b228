#include "engine/ops/linear/low_rank.h"

#include <utility>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"

namespace sluice {
namespace {

View matrix(const Tensor& of) {
  return of.view({of.size() / of.dim(-1), of.dim(-1)});
}

/// Returns columns [first, first + count) of a matrix.
View columns_of(View view, std::int64_t first, std::int64_t count) {
  view.address += first * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape[1] = count;
  return view;
}

View rows_of(View view, std::int64_t first, std::int64_t count) {
  view.address += first * view.stride(0) * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape[0] = count;
  return view;
}

/// Calls body(part, its first column among those of x A^T, its first row in B).
template <class Body>
void for_each_part(const LowRankWeights& weights, Body&& body) {
  std::int64_t inner = 0, row = 0;
  for (const LowRankPart& part : weights.parts) {
    body(part, inner, row);
    inner += weights.b.dim(1);
    row += part.columns;
  }
}

void scale_by(const Tensor& values, double factor) {
  run(Scale{.out = values.view(), .in = values.view(), .factor = factor}, values.stream());
}

/// Inputs of the node: y, x, a, b.
class LowRankNode final : public Node {
 public:
  LowRankNode(Recomputable x, Tensor inner, LowRankWeights weights)
      : x_(std::move(x)), inner_(std::move(inner)), weights_(std::move(weights)) {}

  std::string_view name() const override { return "low_rank"; }
  std::vector<SavedTensor> saved() const override {
    auto list = x_.saved("x");
    list.push_back({"inner", inner_});
    list.push_back({"a", weights_.a});
    list.push_back({"b", weights_.b});
    return list;
  }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const Tensor& grad = grad_outputs[0];
    if (pass.wants(0)) pass.give(0, grad);
    const DType sums = accumulator_of(grad.dtype());
    const bool tf32 = grad.device()->tf32();
    const std::int64_t rank = weights_.b.dim(1);
    Tensor grad_inner = Tensor::empty_like(inner_);
    for_each_part(weights_, [&](const LowRankPart& part, std::int64_t inner, std::int64_t row) {
      run(Gemm{.out = columns_of(matrix(grad_inner), inner, rank),
               .a = columns_of(matrix(grad), part.first, part.columns),
               .b = rows_of(weights_.b.view(), row, part.columns),
               .tf32 = tf32},
          grad.stream());
    });
    scale_by(grad_inner, weights_.scale);
    if (weights_.columns != nullptr)
      grad_inner =
          weights_.columns->all_reduce(std::exchange(grad_inner, {}), {}, "adapter gradient")();
    if (pass.wants(2))
      pass.contribute(2, sums, [=, x = x_()](const GradientTarget& target) {
        run(Gemm{.out = target.tensor.view(),
                 .a = matrix(grad_inner),
                 .b = matrix(x),
                 .transpose_a = true,
                 .accumulate = target.accumulate,
                 .tf32 = tf32},
            grad.stream());
      });
    if (pass.wants(3))
      pass.contribute(
          3, sums, [=, all = weights_, inner_values = inner_](const GradientTarget& target) {
            for_each_part(all, [&](const LowRankPart& part, std::int64_t inner, std::int64_t row) {
              run(Gemm{.out = rows_of(target.tensor.view(), row, part.columns),
                       .a = columns_of(matrix(grad), part.first, part.columns),
                       .b = columns_of(matrix(inner_values), inner, rank),
                       .transpose_a = true,
                       .accumulate = target.accumulate,
                       .tf32 = tf32},
                  grad.stream());
            });
          });
    if (!pass.wants(1)) return;
    Shape shape = grad.shape();
    shape.back() = weights_.a.dim(1);
    const Tensor grad_x = Tensor::empty(grad.device(), shape, grad.dtype());
    run(Gemm{.out = matrix(grad_x), .a = matrix(grad_inner), .b = weights_.a.view(), .tf32 = tf32},
        grad.stream());
    pass.give(1, grad_x);
  }

 private:
  Recomputable x_;
  Tensor inner_;  ///< the product scale * x A^T
  LowRankWeights weights_;
};

}  // namespace

Tensor add_low_rank(const Tensor& y, const Tensor& x, const LowRankWeights& weights,
                    const Recomputable& recomputable) {
  const std::int64_t rank = weights.b.dim(1);
  std::int64_t columns = 0;
  for (const LowRankPart& part : weights.parts) {
    check(part.first >= 0 && part.first + part.columns <= y.dim(-1),
          "a low-rank change of columns that are not there");
    columns += part.columns;
  }
  check(weights.a.dim(0) == rank * static_cast<std::int64_t>(weights.parts.size()) &&
            weights.b.dim(0) == columns && x.dim(-1) == weights.a.dim(1) &&
            x.size() / x.dim(-1) == y.size() / y.dim(-1) && x.dtype() == y.dtype(),
        "low-rank matrices do not fit the layer");
  const bool tf32 = x.device()->tf32();
  Shape shape = x.shape();
  shape.back() = weights.a.dim(0);
  Tensor inner = Tensor::empty(x.device(), shape, x.dtype());
  run(Gemm{.out = matrix(inner),
           .a = matrix(x),
           .b = weights.a.view(),
           .transpose_b = true,
           .tf32 = tf32},
      x.stream());
  scale_by(inner, weights.scale);
  if (weights.rows != nullptr)
    inner = weights.rows->all_reduce(std::exchange(inner, {}), {}, "adapter")();
  Tensor result = y.detach();
  for_each_part(weights, [&](const LowRankPart& part, std::int64_t from, std::int64_t row) {
    run(Gemm{.out = columns_of(matrix(result), part.first, part.columns),
             .a = columns_of(matrix(inner), from, rank),
             .b = rows_of(weights.b.view(), row, part.columns),
             .transpose_b = true,
             .accumulate = true,
             .tf32 = tf32},
        x.stream());
  });
  if (recording({y, x, weights.a, weights.b}))
    attach(std::make_shared<LowRankNode>(recomputable ? recomputable : Recomputable(x), inner,
                                         weights),
           {y, x, weights.a, weights.b}, result);
  return result;
}

}  // namespace sluice
