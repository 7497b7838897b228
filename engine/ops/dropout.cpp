#include "engine/ops/dropout.h"

#include "engine/autograd.h"
#include "kernels/base/run.h"

namespace sluice {
namespace {

/// Keeps nothing: the mask is computed again from its key.
class DropoutNode final : public Node {
 public:
  explicit DropoutNode(const DropoutMask& mask) : mask_(mask) {}

  std::string_view name() const override { return "dropout"; }
  std::vector<SavedTensor> saved() const override { return {}; }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const Tensor& grad_out = grad_outputs[0];
    Tensor grad = Tensor::empty(grad_out.device(), grad_out.shape(), grad_out.dtype());
    run(Dropout{.out = grad.view(), .in = grad_out.view(), .mask = mask_}, grad.stream());
    pass.give(0, grad);
  }

 private:
  DropoutMask mask_;
};

}  // namespace

Tensor dropout(const Tensor& x, const DropoutMask& mask) {
  if (!mask.active()) return x;
  Tensor out = Tensor::empty(x.device(), x.shape(), x.dtype());
  run(Dropout{.out = out.view(), .in = x.view(), .mask = mask}, x.stream());
  if (recording({x})) {
    Tensor* const outputs[] = {&out};
    attach(std::make_shared<DropoutNode>(mask), {x}, outputs);
  }
  return out;
}

}  // namespace sluice
