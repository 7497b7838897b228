#include "engine/ops/dropout.h"

#include "engine/autograd.h"
#include "kernels/base/run.h"

namespace sluice {
namespace {

/// Saves no mask; backward recomputes it from its key.
class DropoutNode final : public Node {
 public:
  DropoutNode(const DropoutMask& mask, const DropoutStretch& stretch)
      : mask_(mask), stretch_(stretch) {}

  std::string_view name() const override { return "dropout"; }
  std::vector<SavedTensor> saved() const override { return {}; }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const Tensor& grad_out = grad_outputs[0];
    Tensor grad = Tensor::empty_like(grad_out);
    run(Dropout{.out = grad.view(),
                .in = grad_out.view(),
                .mask = mask_,
                .first = stretch_.first,
                .per_sample = stretch_.per_sample},
        grad.stream());
    pass.give(0, grad);
  }

 private:
  DropoutMask mask_;
  DropoutStretch stretch_;
};

}  // namespace

Tensor dropout(const Tensor& x, const DropoutMask& mask) {
  return dropout(x, mask, {});
}

Tensor dropout(const Tensor& x, const DropoutMask& mask, const DropoutStretch& stretch) {
  if (!mask.active()) return x;
  Tensor out = Tensor::empty_like(x);
  run(Dropout{.out = out.view(),
              .in = x.view(),
              .mask = mask,
              .first = stretch.first,
              .per_sample = stretch.per_sample},
      x.stream());
  if (recording({x})) attach(std::make_shared<DropoutNode>(mask, stretch), {x}, out);
  return out;
}

}  // namespace sluice
