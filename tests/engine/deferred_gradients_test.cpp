#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/observer.h"
#include "engine/ops/checkpoint.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/linear/mlp.h"
#include "engine/ops/norm.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

// The gradients of weights that a backward pass leaves for later have the bits of a pass that adds
// them at once.

namespace sluice::test::deferred_gradients_test {
namespace {

constexpr std::int64_t width = 6, rows = 5;

/// LayerNorm, a product, an MLP and a product, whose leaves have hooks.
struct Model {
  Model() {
    std::uint64_t seed = 1;
    for (const Shape& shape : {Shape{width},
                               {width},
                               {width, width},
                               {width},
                               {width, 4 * width},
                               {4 * width},
                               {4 * width, width},
                               {width},
                               {width, width}}) {
      const std::string name = std::to_string(leaves.size());
      leaves.push_back(
          Tensor::from_host(device, shape, DType::f32, random_values(element_count(shape), seed++))
              .set_requires_grad(true));
      set_gradient_ready_hook(leaves.back(), [this, name] { ready.push_back(name); });
    }
  }

  Tensor forward(std::uint64_t seed, bool again) {
    x = Tensor::from_host(device, {rows, width}, DType::f32, random_values(rows * width, seed));
    x.set_requires_grad(true);
    const auto compute = [this](std::vector<Tensor> in) {
      Tensor y = layernorm(in[0], leaves[0], leaves[1], 1e-5);
      y = linear(y, leaves[2], leaves[3]);
      y = mlp(y, {leaves[4], leaves[5], leaves[6], leaves[7]}, {}, {});
      return std::vector{linear(y, leaves[8])};
    };
    return again ? checkpoint({x}, leaves, compute)[0] : compute({x})[0];
  }
  std::vector<std::vector<double>> gradients() const {
    std::vector<std::vector<double>> all;
    for (const Tensor& leaf : leaves)
      all.push_back(leaf.grad() ? leaf.grad().to_host() : std::vector<double>());
    return all;
  }

  DevicePtr device = make_cpu_device(std::size_t{4} << 20);
  std::vector<Tensor> leaves;
  std::vector<std::string> ready;
  Tensor x;
};

Tensor seed_for(const Tensor& y) {
  return Tensor::from_host(y.device(), y.shape(), DType::f32, random_values(y.size(), 99));
}

const std::vector<std::string> norm{"0", "1"};

}  // namespace

TEST_CASE("deferred gradients have the bits of those that are added at once", "[autograd]") {
  for (const bool again : {false, true}) {
    CAPTURE(again);
    Model at_once, later;
    DeferredGradients first, second;
    std::vector<std::vector<double>> inputs;
    for (const std::uint64_t pass : {11u, 12u}) {
      const Tensor y = at_once.forward(pass, again);
      backward(y, seed_for(y));
      inputs.push_back(at_once.x.grad().to_host());
    }
    Tensor y = later.forward(11, again);
    backward(y, seed_for(y), &first);
    CHECK(later.x.grad().to_host() == inputs[0]);
    y = later.forward(12, again);
    backward(y, seed_for(y), &second);
    CHECK(later.x.grad().to_host() == inputs[1]);
    const auto of_norm = later.gradients();
    for (std::size_t leaf = 0; leaf < of_norm.size(); ++leaf)
      CHECK(of_norm[leaf].empty() == (leaf > 1));
    CHECK_FALSE(first.empty());
    first.add(false);
    CHECK(first.empty());
    CHECK(later.gradients() != at_once.gradients());
    second.add(true);
    CHECK(later.gradients() == at_once.gradients());
  }
}

TEST_CASE("hooks of deferred gradients are called when these are complete", "[autograd]") {
  Model model;
  DeferredGradients later;
  Tensor y = model.forward(11, false);
  backward(y, seed_for(y), &later);
  std::vector<std::string> seen = model.ready;
  std::ranges::sort(seen);
  CHECK(seen == norm);
  model.ready.clear();
  later.add(false);
  CHECK(model.ready.empty());

  y = model.forward(12, false);
  backward(y, seed_for(y), &later);
  model.ready.clear();
  later.add(true);
  // Backward order: the last product, the MLP's products, the first product.
  CHECK(model.ready == std::vector<std::string>{"8", "6", "7", "4", "5", "2", "3"});
}

TEST_CASE("a pass that is observed defers nothing", "[autograd]") {
  struct Seen : Observer {
    void computed(const Node&, std::span<Tensor* const>) override {}
    void handed_over(const Node& node, const Edge& to, const Tensor&) override {
      if (to.leaf) from.insert(std::string(node.name()));
    }
    std::set<std::string> from;
  } seen;
  Model at_once, observed;
  Tensor y = at_once.forward(11, false);
  backward(y, seed_for(y));
  y = observed.forward(11, false);
  DeferredGradients later;
  {
    const Observed looking(seen);
    backward(y, seed_for(y), &later);
  }
  CHECK(later.empty());
  CHECK(observed.gradients() == at_once.gradients());
  CHECK(seen.from == std::set<std::string>{"layernorm", "linear", "gelu_mlp"});
}

TEST_CASE("deferred gradients give back what they hold one by one", "[autograd]") {
  Model model;
  DeferredGradients later;
  for (const std::uint64_t pass : {11u, 12u}) {  // in the second all gradients have their memory
    const Tensor y = model.forward(pass, false);
    later.add(false);
    backward(y, seed_for(y), &later);
  }
  model.x = {};
  std::vector<std::size_t> held{model.device->arena().in_use()};
  for (const Tensor& leaf : model.leaves)
    set_gradient_ready_hook(leaf, [&] { held.push_back(model.device->arena().in_use()); });
  later.add(true);
  // The last product holds its input and its gradient until its only contribution is added. A
  // product with a bias holds its gradient until both are.
  REQUIRE(held.size() == 8);
  CHECK(std::ranges::is_sorted(held, std::greater()));
  CHECK(std::set(held.begin(), held.end()).size() >= 4);
}

}  // namespace sluice::test::deferred_gradients_test
