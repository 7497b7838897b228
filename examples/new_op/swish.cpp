#include "swish.h"

#include <engine/autograd.h>
#include <kernels/base/dtype.h>
#include <kernels/cpu/math.h>
#include <kernels/cpu/parallel_for.h>

#include <cmath>

namespace mine {
namespace {

using namespace sluice;

/// Computes out[i] = f(in[i]...) in float (double for double) on several threads.
template <class T, class F, class... In>
void map(std::int64_t count, F f, T* out, const In*... in) {
  cpu::parallel_ranges(count, 4096, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      cpu::store(out[i], f(static_cast<cpu::Accumulator<T>>(in[i])...));
  });
}

constexpr auto sigmoid = []<class A>(A x) { return A(1) / (A(1) + std::exp(-x)); };

/// Keeps the input for the backward pass.
class SwishNode final : public Node {
 public:
  explicit SwishNode(Tensor in) : in_(std::move(in)) {}

  std::string_view name() const override { return "swish"; }
  std::vector<SavedTensor> saved() const override { return {{"in", in_}}; }
  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const Tensor grad = Tensor::empty(in_.device(), in_.shape(), in_.dtype());
    run(SwishBackward{grad.view(), grad_outputs[0].view(), in_.view()}, grad.stream());
    pass.give(0, grad);
  }

 private:
  Tensor in_;
};

}  // namespace

void launch_cpu(const SwishForward& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    map(
        op.in.size(), [](auto x) { return x * sigmoid(x); }, op.out.data<T>(), op.in.data<T>());
  });
}

void launch_cpu(const SwishBackward& op) {
  const auto gradient = [](auto grad, auto x) {
    const auto s = sigmoid(x);
    return grad * (s + x * s * (1 - s));
  };
  dispatch_floating(op.in.dtype, [&]<class T>() {
    map(op.in.size(), gradient, op.grad_in.data<T>(), op.grad_out.data<T>(), op.in.data<T>());
  });
}

Tensor swish(const Tensor& x) {
  Tensor out = Tensor::empty(x.device(), x.shape(), x.dtype());
  run(SwishForward{out.view(), x.view()}, x.stream());
  if (recording({x})) attach(std::make_shared<SwishNode>(x), {x}, out);
  return out;
}

}  // namespace mine
