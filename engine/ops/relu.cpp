#include "engine/ops/relu.h"

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/relu.h"

namespace sluice {
namespace {

class ReluNode final : public Node {
 public:
  explicit ReluNode(Tensor out) : out_(std::move(out)) {}

  std::string_view name() const override { return "relu"; }
  std::vector<SavedTensor> saved() const override { return {{"out", out_}}; }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    Tensor grad = Tensor::empty(out_.device(), out_.shape(), out_.dtype());
    run(
        ReluBackward{
            .grad_in = grad.view(), .grad_out = grad_outputs[0].view(), .out = out_.view()},
        grad.stream());
    pass.give(0, grad);
  }

 private:
  Tensor out_;
};

}  // namespace

Tensor relu(const Tensor& x) {
  Tensor out = Tensor::empty(x.device(), x.shape(), x.dtype());
  run(ReluForward{.out = out.view(), .in = x.view()}, x.stream());
  if (recording({x})) {
    Tensor* const outputs[] = {&out};
    attach(std::make_shared<ReluNode>(out.detach()), {x}, outputs);
  }
  return out;
}

}  // namespace sluice
