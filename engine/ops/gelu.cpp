#include "engine/ops/gelu.h"

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/gelu.h"

namespace sluice {
namespace {

class GeluNode final : public Node {
 public:
  explicit GeluNode(Tensor in) : in_(std::move(in)) {}

  std::string_view name() const override { return "gelu"; }
  std::vector<SavedTensor> saved() const override { return {{"in", in_}}; }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    Tensor grad = Tensor::empty(in_.device(), in_.shape(), in_.dtype());
    run(GeluBackward{.grad_in = grad.view(), .grad_out = grad_outputs[0].view(), .in = in_.view()},
        grad.stream());
    pass.give(0, grad);
  }

 private:
  Tensor in_;
};

}  // namespace

Tensor gelu(const Tensor& x) {
  Tensor out = Tensor::empty(x.device(), x.shape(), x.dtype());
  run(GeluForward{.out = out.view(), .in = x.view()}, x.stream());
  if (recording({x})) {
    Tensor* const outputs[] = {&out};
    attach(std::make_shared<GeluNode>(x), {x}, outputs);
  }
  return out;
}

}  // namespace sluice
