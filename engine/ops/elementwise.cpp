#include "engine/ops/elementwise.h"

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"

namespace sluice {
namespace {

/// Both inputs receive the gradient of their sum.
class AddNode final : public Node {
 public:
  std::string_view name() const override { return "add"; }
  std::vector<SavedTensor> saved() const override { return {}; }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    pass.give(0, grad_outputs[0]);
    pass.give(1, grad_outputs[0]);
  }
};

class ReluNode final : public Node {
 public:
  explicit ReluNode(Tensor out) : out_(std::move(out)) {}

  std::string_view name() const override { return "relu"; }
  std::vector<SavedTensor> saved() const override { return {{"out", out_}}; }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    Tensor grad = Tensor::empty_like(out_);
    run(
        ReluBackward{
            .grad_in = grad.view(), .grad_out = grad_outputs[0].view(), .out = out_.view()},
        grad.stream());
    pass.give(0, grad);
  }

 private:
  Tensor out_;
};

class GeluNode final : public Node {
 public:
  explicit GeluNode(Tensor in) : in_(std::move(in)) {}

  std::string_view name() const override { return "gelu"; }
  std::vector<SavedTensor> saved() const override { return {{"in", in_}}; }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    Tensor grad = Tensor::empty_like(in_);
    run(GeluBackward{.grad_in = grad.view(), .grad_out = grad_outputs[0].view(), .in = in_.view()},
        grad.stream());
    pass.give(0, grad);
  }

 private:
  Tensor in_;
};

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  check(a.shape() == b.shape() && a.dtype() == b.dtype(),
        "tensors to be added must have one shape and one dtype");
  Tensor out = Tensor::empty_like(a);
  run(Add{.out = out.view(), .a = a.view(), .b = b.view()}, out.stream());
  attach(std::make_shared<AddNode>(), {a, b}, out);
  return out;
}

Tensor relu(const Tensor& x) {
  Tensor out = Tensor::empty_like(x);
  run(ReluForward{.out = out.view(), .in = x.view()}, x.stream());
  if (recording({x})) attach(std::make_shared<ReluNode>(out.detach()), {x}, out);
  return out;
}

Tensor gelu(const Tensor& x) {
  Tensor out = Tensor::empty_like(x);
  run(GeluForward{.out = out.view(), .in = x.view()}, x.stream());
  if (recording({x})) attach(std::make_shared<GeluNode>(x), {x}, out);
  return out;
}

}  // namespace sluice
