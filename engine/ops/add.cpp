#include "engine/ops/add.h"

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

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  check(a.shape() == b.shape() && a.dtype() == b.dtype(),
        "tensors to be added must have one shape and one dtype");
  Tensor out = Tensor::empty(a.device(), a.shape(), a.dtype());
  run(Add{.out = out.view(), .a = a.view(), .b = b.view()}, out.stream());
  Tensor* const outputs[] = {&out};
  attach(std::make_shared<AddNode>(), {a, b}, outputs);
  return out;
}

}  // namespace sluice
