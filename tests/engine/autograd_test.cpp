#include "engine/autograd.h"

#include <algorithm>
#include <array>

#include "engine/ops/dropout.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/norm.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "models/mlp/mlp.h"
#include "optim/space/parameter_space.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::autograd_test {
namespace {

Tensor make(const DevicePtr& on, const Values& values, bool leaf = true) {
  Tensor tensor =
      Tensor::from_host(on, {static_cast<std::int64_t>(values.size())}, DType::f64, values);
  return tensor.set_requires_grad(leaf);
}

/// a + b whose backward pass hands the same gradient tensor to both inputs, as ops may.
class SharedSum final : public Node {
 public:
  std::string_view name() const override { return "shared_sum"; }
  std::vector<SavedTensor> saved() const override { return {}; }
  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    for (const std::size_t input : {0u, 1u})
      if (pass.wants(input)) pass.give(input, grad_outputs[0]);
  }
};

/// An identity with two results that writes its gradient through target(), as matrix products do.
class Fork final : public Node {
 public:
  explicit Fork(std::vector<int>* seen) : seen_(seen) {}
  std::string_view name() const override { return "fork"; }
  std::vector<SavedTensor> saved() const override { return {}; }
  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    REQUIRE(grad_outputs.size() == 2);
    seen_->push_back((grad_outputs[0] ? 1 : 0) + (grad_outputs[1] ? 2 : 0));
    for (const Tensor& gradient : grad_outputs) {
      if (!gradient) continue;
      const auto [to, accumulate] = pass.target(0, gradient.dtype());
      if (accumulate)
        run(Add{.out = to.view(), .a = to.view(), .b = gradient.view()}, to.stream());
      else
        run(Cast{.out = to.view(), .in = gradient.view()}, to.stream());
    }
  }

 private:
  std::vector<int>* seen_;
};

std::pair<Tensor, Tensor> fork(const Tensor& x, std::vector<int>* seen) {
  Tensor first = x.detach(), second = x.detach();
  Tensor* const outputs[] = {&first, &second};
  attach(std::make_shared<Fork>(seen), {x}, outputs);
  return {first, second};
}

TEST_CASE("a tensor used several times adds up its gradients", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  const Tensor x = make(cpu, {1, 2}), upstream = make(cpu, {10, 20}, false);
  backward(add(add(x, x), x), upstream);
  CHECK(x.grad().to_host() == Values{30, 60});
  CHECK(upstream.to_host() == Values{10, 20});  // the caller's tensor is not scratch space
}

TEST_CASE("gradients that share memory are never added to in place", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  const Tensor x = make(cpu, {1}), y = make(cpu, {1}), z = make(cpu, {1}),
               one = make(cpu, {1}, false);
  // a's first gradient is the very tensor that z gets; adding a's second gradient in place would
  // change z's, and b's after it.
  const Tensor a = add(x, x), b = add(y, y);
  const Tensor c = add(a, b);
  backward(add(add(a, c), add(z, b)), one);
  CHECK(x.grad().item() == 4);  // 2 * (directly + through c)
  CHECK(y.grad().item() == 4);
  CHECK(z.grad().item() == 1);
  CHECK(one.item() == 1);
}

TEST_CASE("a gradient that is shared is not a buffer to be added to either", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  std::vector<int> seen;
  const Tensor x = make(cpu, {1}), y = make(cpu, {1}), one = make(cpu, {1}, false);
  const Tensor a = add(x, x), b = add(y, y);
  // The sums give b, a and the fork the caller's own tensor; the fork then adds to a's gradient,
  // and b reads its own after that.
  backward(add(b, add(a, fork(a, &seen).first)), one);
  CHECK(seen == std::vector{1});
  CHECK(one.item() == 1);
  CHECK(x.grad().item() == 4);  // 2 * (directly + through the fork)
  CHECK(y.grad().item() == 2);
}

TEST_CASE("a node with two results runs once, with what reached each of them", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  std::vector<int> seen;
  const Tensor x = make(cpu, {1});
  const auto [first, second] = fork(x, &seen);
  backward(add(first, add(second, second)));
  CHECK(seen == std::vector{3});
  CHECK(x.grad().item() == 3);
  const Tensor only = fork(x, &seen).second;
  backward(only);
  CHECK(seen == std::vector{3, 2});
  CHECK(x.grad().item() == 4);
}

TEST_CASE("a hook hears of a gradient that is about to be overwritten, not of one added to",
          "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  Tensor weight = make(cpu, {3});
  const Tensor buffer = Tensor::from_host(cpu, {1}, DType::f64, Values{7});
  set_gradient_buffer(weight, buffer);
  int begun = 0;
  Values before;
  set_gradient_begin_hook(weight, [&] {
    ++begun;
    before = buffer.to_host();
  });
  CHECK_FALSE(has_gradient(weight));
  backward(add(weight, weight));  // two contributions
  CHECK(begun == 1);
  CHECK(before == Values{7});
  CHECK(has_gradient(weight));
  backward(add(weight, weight));
  CHECK(begun == 1);
  CHECK(buffer.to_host() == Values{4});
  forget_gradient(weight);
  CHECK_FALSE(has_gradient(weight));
  backward(add(weight, weight));
  CHECK(begun == 2);
  CHECK(before == Values{4});
  CHECK(buffer.to_host() == Values{2});
}

TEST_CASE("hooks fire once a pass, when the gradient is complete", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  std::vector<std::string> order;
  std::vector<Values> at_hook;
  const auto watch = [&](const Tensor& leaf, const std::string& name) {
    // A raw pointer: a leaf whose own hook owned it would live for ever.
    set_gradient_ready_hook(leaf, [&order, &at_hook, name, impl = leaf.impl()] {
      order.push_back(name);
      at_hook.push_back(impl->gradient.tensor.to_host());
    });
  };
  std::vector<Tensor> weights;
  for (std::uint64_t i = 0; i < 3; ++i) {
    weights.push_back(Tensor::from_host(cpu, {3, 3}, DType::f64, random_values(9, i)));
    weights.back().set_requires_grad(true);
    watch(weights.back(), "w" + std::to_string(i));
  }
  Tensor shared = Tensor::from_host(cpu, {3}, DType::f64, random_values(3, 9));
  shared.set_requires_grad(true);
  watch(shared, "shared");
  const auto loss = [&] {
    Tensor x = Tensor::from_host(cpu, {2, 3}, DType::f64, random_values(6, 8));
    x = linear(x, weights[0], shared);
    x = gelu(linear(x, weights[1]));
    return linear(x, weights[2], shared);
  };
  const Tensor upstream = Tensor::from_host(cpu, {2, 3}, DType::f64, random_values(6, 7));
  for (int pass = 0; pass < 2; ++pass) {
    order.clear();
    at_hook.clear();
    backward(loss(), upstream);
    REQUIRE(order.size() == 4);
    // The top of the model first; the shared bias only with the bottom layer.
    CHECK(order[0] == "w2");
    CHECK(order[1] == "w1");
    CHECK(std::is_permutation(order.begin() + 2, order.end(),
                              std::vector<std::string>{"w0", "shared"}.begin()));
    for (std::size_t i = 0; i < 4; ++i) {
      const Tensor& leaf =
          order[i] == "shared" ? shared : weights[static_cast<std::size_t>(order[i].back() - '0')];
      CHECK(at_hook[i] == leaf.grad().to_host());
    }
  }
}

TEST_CASE("backward passes accumulate until the gradient is forgotten", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  const Tensor x = make(cpu, {1, 2}), one = make(cpu, {1, 1}, false);
  CHECK_FALSE(x.grad());
  zero_unused_gradient(x);
  backward(add(x, x), one);
  backward(add(x, x), one);
  CHECK(x.grad().to_host() == Values{4, 4});
  forget_gradient(x);
  backward(add(x, x), one);
  CHECK(x.grad().to_host() == Values{2, 2});
  zero_unused_gradient(x);  // something reached it: nothing to zero
  CHECK(x.grad().to_host() == Values{2, 2});
  forget_gradient(x);
  zero_unused_gradient(x);
  CHECK(x.grad().to_host() == Values{0, 0});
  backward(add(x, x), one);
  CHECK(x.grad().to_host() == Values{2, 2});
}

TEST_CASE("gradients go to the buffer that the leaf was given", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  const Tensor whole = make(cpu, Values(12, 7), false), one = make(cpu, {1, 1, 1}, false);
  const Tensor x = make(cpu, {1, 2, 3});
  set_gradient_buffer(x, whole.slice(4, {3}));
  backward(add(x, x), one);  // by give(): overwrites the sevens
  CHECK(whole.to_host() == Values{7, 7, 7, 7, 2, 2, 2, 7, 7, 7, 7, 7});
  std::vector<int> seen;
  const auto [a, b] = fork(x, &seen);  // by target(): adds
  backward(add(a, b), one);
  CHECK(whole.to_host() == Values{7, 7, 7, 7, 4, 4, 4, 7, 7, 7, 7, 7});
  forget_gradient(x);
  const auto first = leaf_gradient_target(x, DType::f64);
  CHECK_FALSE(first.accumulate);
  CHECK(first.tensor.view().address == whole.slice(4, {3}).view().address);
  const Values direct{5, 6, 7};
  first.tensor.copy_bytes_from(std::as_bytes(std::span(direct)));
  CHECK(leaf_gradient_target(x, DType::f64).accumulate);
  backward(add(x, x), one);
  CHECK(x.grad().to_host() == Values{7, 8, 9});
}

TEST_CASE("under NoGrad nothing is recorded", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  const Tensor x = make(cpu, {1, 2});
  {
    const NoGrad outer;
    { const NoGrad inner; }
    CHECK_FALSE(gelu(x).requires_grad());
    CHECK(kept_tensors(gelu(x)).empty());
  }
  CHECK(recording({x.detach(), x}));
  CHECK(gelu(x).requires_grad());
  CHECK_FALSE(gelu(x.detach()).requires_grad());
}

TEST_CASE("attach records only where an op would", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  const auto attached = [&](const Tensor& input) {
    Tensor out = Tensor::zeros(cpu, {2}, DType::f64);
    Tensor* const outputs[] = {&out};
    attach(std::make_shared<SharedSum>(), {input, input}, outputs);
    return out.requires_grad();
  };
  const Tensor x = make(cpu, {1, 2});
  CHECK(attached(x));
  CHECK_FALSE(attached(x.detach()));
  const NoGrad none;
  CHECK_FALSE(attached(x));
}

TEST_CASE("a graph returns its memory", "[autograd]") {
  const auto cpu = make_cpu_device(4 << 20);
  const auto in_use = [&] { return cpu->arena().in_use(); };
  const Tensor w = make(cpu, random_values(64, 2)), b = make(cpu, random_values(64, 3));
  Tensor x = Tensor::from_host(cpu, {1, 64}, DType::f64, random_values(64, 1));
  x.set_requires_grad(true);
  const auto model = [&] {
    Tensor y = x;
    for (int layer = 0; layer < 500; ++layer) {
      const auto norm = residual_norm(y, gelu(y), {w, b}, 1e-5);
      y = add(norm.sum, dropout(norm.normalized, {.key = 1, .probability = 0.5f}));
    }
    return y;
  };
  const std::size_t before = in_use();
  model();  // never run backwards
  CHECK(in_use() == before);
  {
    const Tensor y = model();
    CHECK(in_use() > before + 500 * 512);
    backward(y, x.detach());
    // The graph is used up although its output is still here: gradients of three leaves, and y.
    CHECK(in_use() == before + 4 * 512);
    CHECK(kept_tensors(y).empty());
  }
  for (int step = 0; step < 3; ++step)
    backward(model(), x.detach());
  CHECK(in_use() == before + 3 * 512);
}

TEST_CASE("kept_tensors lists what a graph saves", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  Tensor x = Tensor::from_host(cpu, {4, 8}, DType::f64, random_values(32, 1));
  Tensor w = Tensor::from_host(cpu, {8, 3}, DType::f64, random_values(24, 2));
  w.set_requires_grad(true);
  const Tensor hidden = linear(x, w);
  const Tensor y = gelu(hidden);
  const auto kept = kept_tensors(y);
  const auto keeps = [&](std::string_view node, const Tensor& tensor) {
    return std::any_of(kept.begin(), kept.end(), [&](const KeptTensor& one) {
      CHECK_FALSE(one.saved.name.empty());
      return one.node == node && one.saved.tensor.view().address == tensor.view().address;
    });
  };
  CHECK(keeps("gelu", hidden));
  CHECK(keeps("linear", x));
  CHECK_FALSE(keeps("gelu", x));
  CHECK(kept_tensors(x).empty());
}

TEST_CASE("backward refuses what has no meaning", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  const Tensor x = make(cpu, {1, 2});
  CHECK(error_message([&] { backward(add(x, x)); }) != "(no error)");  // which of the two is 1?
  CHECK(error_message([&] { backward(gelu(x.detach())); }) != "(no error)");
  CHECK(error_message([&] { backward(add(x, x), make(cpu, {1, 2, 3}, false)); }) != "(no error)");
}

/// The peak of one training step of a model, and what is left after it.
std::array<std::size_t, 3> step_memory(const DevicePtr& on) {
  Mlp model({.in = 33, .width = 70, .layers = 4, .classes = 11});
  ParameterSpace space(model.parameters(), on, DType::bf16, ParameterSpace::Use::training);
  space.initialize(1);
  for (int step = 0; step < 2; ++step) {
    const Tensor x = Tensor::from_host(on, {57, 33}, DType::bf16, random_values(57 * 33, 1));
    const Tensor targets = Tensor::from_tokens(on, {57}, std::vector<std::int32_t>(57, 3));
    space.forget_gradients();
    backward(model.loss(x, targets, {.chunk = 16}).loss);
  }
  return {on->arena().peak(), on->arena().in_use(), on->arena().high_water()};
}

TEST_CASE("the meta device allocates exactly as the CPU does", "[autograd]") {
  const auto measured = step_memory(make_cpu_device(8 << 20));
  CHECK(step_memory(make_meta_device(8 << 20)) == measured);
  CHECK(measured[0] > measured[1]);
}

TEST_CASE("a step that does not fit says so and leaves the device usable", "[autograd]") {
  const auto cpu = make_cpu_device(96 << 10);
  const auto message = error_message([&] { step_memory(cpu); });
  CHECK_THAT(message, Contains("98304"));
  CHECK(cpu->arena().in_use() == 0);
  CHECK(make(cpu, {1}).item() == 1);
}

}  // namespace
}  // namespace sluice::test::autograd_test
