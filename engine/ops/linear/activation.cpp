#include "engine/ops/linear/activation.h"

#include <utility>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "kernels/swiglu.h"

namespace sluice {
namespace {

class ActivationNode final : public Node {
 public:
  ActivationNode(Tensor x, MlpActivation kind) : x_(std::move(x)), kind_(kind) {}

  std::string_view name() const override { return "activation"; }
  std::vector<SavedTensor> saved() const override { return {{"x", x_}}; }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const Tensor grad = Tensor::empty_like(x_);
    activation_gradient(grad, grad_outputs[0], x_, kind_);
    pass.give(0, grad);
  }

 private:
  Tensor x_;
  MlpActivation kind_;
};

}  // namespace

Tensor empty_activated(const Tensor& x, MlpActivation kind) {
  Shape shape = x.shape();
  if (kind == MlpActivation::swiglu) shape.back() /= 2;
  return Tensor::empty(x.device(), shape, x.dtype());
}

void activate(const Tensor& out, const Tensor& x, MlpActivation kind) {
  if (kind == MlpActivation::swiglu)
    run(SwigluForward{.out = out.view(), .in = x.view()}, out.stream());
  else if (kind == MlpActivation::relu)
    run(ReluForward{.out = out.view(), .in = x.view()}, out.stream());
  else
    run(GeluForward{.out = out.view(), .in = x.view(), .exact = kind == MlpActivation::exact_gelu},
        out.stream());
}

void activation_gradient(const Tensor& grad_x, const Tensor& grad_out, const Tensor& x,
                         MlpActivation kind) {
  if (kind == MlpActivation::swiglu)
    run(SwigluBackward{.grad_in = grad_x.view(), .grad_out = grad_out.view(), .in = x.view()},
        x.stream());
  else if (kind == MlpActivation::relu)
    // The input is positive where the output is.
    run(ReluBackward{.grad_in = grad_x.view(), .grad_out = grad_out.view(), .out = x.view()},
        x.stream());
  else
    run(GeluBackward{.grad_in = grad_x.view(),
                     .grad_out = grad_out.view(),
                     .in = x.view(),
                     .exact = kind == MlpActivation::exact_gelu},
        x.stream());
}

Activated activation(const Tensor& x, MlpActivation kind) {
  Tensor out = empty_activated(x, kind);
  activate(out, x, kind);
  if (!recording({x})) return {out, {}};
  // The graph keeps x without its history, or it would keep itself.
  const Tensor kept = x.detach();
  const Recomputable again({{"pre_activation", kept}}, [kept, kind] {
    const Tensor once_more = empty_activated(kept, kind);
    activate(once_more, kept, kind);
    return once_more;
  });
  attach(std::make_shared<ActivationNode>(kept, kind), {x}, out);
  return {out, again};
}

}  // namespace sluice
