#include "engine/ops/head_order.h"

#include <fmt/format.h>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/head_order.h"

namespace sluice {
namespace {

class HeadOrderNode final : public Node {
 public:
  explicit HeadOrderNode(int heads) : heads_(heads) {}

  std::string_view name() const override { return "in_head_order"; }
  std::vector<SavedTensor> saved() const override { return {}; }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const Tensor grad = Tensor::empty_like(grad_outputs[0]);
    run(
        HeadOrder{
            .out = grad.view(), .in = grad_outputs[0].view(), .heads = heads_, .inverse = true},
        grad.stream());
    pass.give(0, grad);
  }

 private:
  int heads_;
};

}  // namespace

Tensor in_head_order(const Tensor& qkv, int heads) {
  if (heads < 1 || qkv.dim(-1) % (3 * heads) != 0)
    fail(
        fmt::format("in_head_order: an input of shape {} does not divide into q, k and v of {} "
                    "heads",
                    to_string(qkv.shape()), heads));
  Tensor out = Tensor::empty_like(qkv);
  run(HeadOrder{.out = out.view(), .in = qkv.view(), .heads = heads}, qkv.stream());
  if (recording({qkv})) attach(std::make_shared<HeadOrderNode>(heads), {qkv}, out);
  return out;
}

}  // namespace sluice
