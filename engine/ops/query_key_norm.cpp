#include "engine/ops/query_key_norm.h"

#include <fmt/format.h>

#include <utility>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/query_key_norm.h"

namespace sluice {
namespace {

/// Inputs of the node: qkv, query_weight, key_weight.
class QueryKeyNormNode final : public Node {
 public:
  QueryKeyNormNode(Tensor in, Tensor query_weight, Tensor key_weight, const AttentionHeads& heads,
                   double epsilon, TensorGroup* group)
      : in_(std::move(in)),
        query_weight_(std::move(query_weight)),
        key_weight_(std::move(key_weight)),
        heads_(heads),
        epsilon_(epsilon),
        group_(group) {}

  std::string_view name() const override { return "query_key_norm"; }
  std::vector<SavedTensor> saved() const override {
    return {{"in", in_}, {"query_weight", query_weight_}, {"key_weight", key_weight_}};
  }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const DType sums = accumulator_of(in_.dtype());
    const Shape& width = query_weight_.shape();
    Tensor grad_in = Tensor::empty_like(in_);
    // The ranks' gradients of both weights are summed in one operation.
    Tensor all;
    if (group_ != nullptr) all = Tensor::empty(in_.device(), {2, query_weight_.size()}, sums);
    const auto part = [&](std::size_t input) {
      return all.slice(input == 1 ? 0 : query_weight_.size(), width);
    };
    const auto place = [&](std::size_t input) {
      if (group_ != nullptr) return GradientTarget{part(input), false};
      if (pass.wants(input)) return pass.target(input, sums);
      return GradientTarget{Tensor::empty(in_.device(), width, sums), false};
    };
    const GradientTarget query = place(1), key = place(2);
    run(QueryKeyNormBackward{.grad_in = grad_in.view(),
                             .grad_query_weight = query.tensor.view(),
                             .grad_key_weight = key.tensor.view(),
                             .grad_out = grad_outputs[0].view(),
                             .in = in_.view(),
                             .query_weight = query_weight_.view(),
                             .key_weight = key_weight_.view(),
                             .heads = heads_,
                             .epsilon = epsilon_,
                             .accumulate_query = query.accumulate,
                             .accumulate_key = key.accumulate},
        in_.stream());
    if (group_ != nullptr) {
      all = group_->all_reduce(std::exchange(all, {}), {}, "norm gradient")();
      for (const std::size_t input : {1u, 2u})
        if (pass.wants(input)) pass.give(input, part(input));
    }
    if (pass.wants(0)) pass.give(0, grad_in);
  }

 private:
  Tensor in_, query_weight_, key_weight_;
  AttentionHeads heads_;
  double epsilon_;
  TensorGroup* group_;
};

}  // namespace

Tensor query_key_norm(const Tensor& qkv, const Tensor& query_weight, const Tensor& key_weight,
                      const AttentionHeads& heads, double epsilon, TensorGroup* group) {
  const std::int64_t width = query_weight.size();
  if (qkv.dim(-1) != heads.in_row() * width || key_weight.size() != width ||
      width > QueryKeyNormForward::max_width)
    fail(fmt::format(
        "query_key_norm: an input of shape {} with {} heads of q and {} of k and v, "
        "and weights of shapes {} and {} do not fit together, or a head is wider than "
        "{}",
        to_string(qkv.shape()), heads.query, heads.key_value, to_string(query_weight.shape()),
        to_string(key_weight.shape()), QueryKeyNormForward::max_width));
  Tensor out = Tensor::empty_like(qkv);
  run(QueryKeyNormForward{.out = out.view(),
                          .in = qkv.view(),
                          .query_weight = query_weight.view(),
                          .key_weight = key_weight.view(),
                          .heads = heads,
                          .epsilon = epsilon},
      qkv.stream());
  if (recording({qkv, query_weight, key_weight}))
    attach(std::make_shared<QueryKeyNormNode>(qkv, query_weight, key_weight, heads, epsilon, group),
           {qkv, query_weight, key_weight}, out);
  return out;
}

}  // namespace sluice
