#include "engine/ops/checkpoint.h"

#include <algorithm>

#include "engine/autograd.h"
#include "engine/ops/dropout.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/norm.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::checkpoint_test {
namespace {

using Tensors = std::vector<Tensor>;

Tensor random_tensor(const DevicePtr& on, const Shape& shape, std::uint64_t seed,
                     DType dtype = DType::f64) {
  Tensor tensor = Tensor::from_host(on, shape, dtype, random_values(element_count(shape), seed));
  return tensor.set_requires_grad(true);
}

/// Two inputs and two outputs, of which the second depends on the first. Leaves: a weight and its
/// bias, another weight, the LayerNorm's gain and shift.
struct Step {
  Tensors leaves;

  Tensors operator()(const Tensors& in) const {
    const auto [sum, normalized, recomputable] =
        residual_norm(in[0], in[1], {leaves[3], leaves[4]}, 1e-5);
    const Tensor hidden =
        gelu(linear(normalized, leaves[0], leaves[1], {.recomputable = recomputable}));
    return {sum, dropout(linear(hidden, leaves[2]), {.key = 3, .probability = 0.2F})};
  }
};

/// The model's two inputs, the step's leaves, and a weight of the model's own.
Tensors make_leaves(const DevicePtr& on, DType dtype = DType::f64) {
  Tensors list;
  std::uint64_t seed = 10;
  for (const Shape& shape : {Shape{4, 5}, Shape{4, 5}, Shape{5, 5}, Shape{5}, Shape{5, 5}, Shape{5},
                             Shape{5}, Shape{5, 5}})
    list.push_back(random_tensor(on, shape, ++seed, dtype));
  return list;
}

enum class Use { both, first, second };
constexpr Use uses[] = {Use::both, Use::first, Use::second};

/// Applies `use` to the outputs, through parameters that the step uses too. All additions to those
/// gradients run in one order only, so that a checkpoint changes no bit of them either.
Tensor after(const Tensors& outputs, Use use, const Tensors& all) {
  if (use == Use::first) return linear(outputs[0], all[2]);
  if (use == Use::second) return linear(gelu(outputs[1]), all[2]);
  return linear(residual_norm(outputs[0], outputs[1], {all[5], all[6]}, 1e-5).normalized, all[2]);
}

Tensor model(const Tensors& all, Use use, int checkpoints) {
  const Step step{{all[2], all[3], all[4], all[5], all[6]}};
  // The inputs of the step are results themselves, the gradient goes on behind them.
  Tensors in{linear(all[0], all[7]), gelu(all[1])};
  CheckpointFunction twice = [step](const Tensors& x) { return step(step(x)); };
  if (checkpoints == 2)
    twice = [step](const Tensors& x) {
      return checkpoint(checkpoint(x, step.leaves, step), step.leaves, step);
    };
  return after(checkpoints > 0 ? checkpoint(in, step.leaves, twice) : twice(in), use, all);
}

}  // namespace

TEST_CASE("a checkpointed function has the gradient of its formula", "[gradient]") {
  const auto cpu = make_cpu_device(1 << 22);
  for (const Use use : uses)
    for (const int checkpoints : {1, 2}) {
      CAPTURE(static_cast<int>(use), checkpoints);
      CHECK(gradcheck([&](const Tensors& all) { return model(all, use, checkpoints); },
                      make_leaves(cpu)) == "");
    }
}

TEST_CASE("a checkpoint changes no bit", "[autograd]") {
  for (const DeviceKind kind : device_kinds())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto device = open_device(kind);
      for (const Use use : uses) {
        CAPTURE(static_cast<int>(kind), name_of(dtype), static_cast<int>(use));
        const auto results = [&](int checkpoints) {
          const Tensors leaves = make_leaves(device, dtype);
          std::vector<Values> values;
          for (int pass = 0; pass < 2; ++pass) {
            const Tensor out = model(leaves, use, checkpoints);
            values.push_back(out.to_host());
            backward(out, out.detach());
          }
          for (const Tensor& leaf : leaves)
            values.push_back(leaf.grad().to_host());
          return values;
        };
        const auto expected = results(0);
        CHECK(results(1) == expected);
        CHECK(results(2) == expected);
      }
    }
}

TEST_CASE("a leaf inside and outside of checkpoints is ready once, when it is complete",
          "[autograd]") {
  const auto cpu = make_cpu_device(1 << 22);
  for (const Use use : uses)
    for (const int checkpoints : {1, 2}) {
      CAPTURE(static_cast<int>(use), checkpoints);
      const Tensors leaves = make_leaves(cpu);
      std::vector<std::pair<std::size_t, Values>> fired;
      for (std::size_t i = 0; i < leaves.size(); ++i)
        set_gradient_ready_hook(leaves[i], [&fired, i, impl = leaves[i].impl()] {
          fired.emplace_back(i, impl->gradient.tensor.to_host());
        });
      for (int pass = 0; pass < 2; ++pass) {
        fired.clear();
        const Tensor out = model(leaves, use, checkpoints);
        backward(out, out.detach());
        REQUIRE(fired.size() == leaves.size());
        std::ranges::sort(fired);
        for (std::size_t i = 0; i < leaves.size(); ++i) {
          CHECK(fired[i].first == i);
          CHECK(fired[i].second == leaves[i].grad().to_host());
        }
      }
    }
}

TEST_CASE("a checkpoint hands its inputs through, and does without one", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  const Tensor x = random_tensor(cpu, {3}, 1), y = random_tensor(cpu, {3}, 2);
  const Tensor doubled = gelu(x);
  const auto out = checkpoint({doubled, {}, y}, {}, [](const Tensors& in) {
    CHECK_FALSE(in[1]);
    return Tensors{in[0], relu(in[0]), in[2]};
  });
  CHECK_FALSE(doubled.same_as(out[0]));
  const Tensor sum =
      residual_norm(out[0], out[2],
                    {Tensor::zeros(cpu, {3}, DType::f64), Tensor::zeros(cpu, {3}, DType::f64)},
                    1e-5)
          .sum;
  const Tensor upstream = Tensor::from_host(cpu, {3}, DType::f64, Values{1, 2, 3});
  backward(sum, upstream);
  CHECK(y.grad().to_host() == Values{1, 2, 3});
  const Values through = x.grad().to_host();
  forget_gradient(x);
  backward(gelu(x), upstream);
  CHECK(through == x.grad().to_host());
}

TEST_CASE("a checkpoint records nothing where nothing is wanted", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  const Tensor x = random_tensor(cpu, {3}, 1);
  int calls = 0;
  const auto function = [&calls](const Tensors& in) {
    ++calls;
    return Tensors{gelu(in[0])};
  };
  CHECK_FALSE(checkpoint({x.detach()}, {}, function)[0].requires_grad());
  {
    const NoGrad no_grad;
    CHECK_FALSE(checkpoint({x}, {}, function)[0].requires_grad());
  }
  CHECK(calls == 2);
  const auto out = checkpoint({x}, {}, function);
  CHECK(kept_tensors(out[0]).size() == 1);
  backward(out[0], x.detach());
  CHECK(calls == 4);
  CHECK(recording({x}));  // backward() leaves recording as it was
}

TEST_CASE("a checkpoint frees its input and its graph while it runs backwards", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  constexpr std::size_t tensor = 1024 * sizeof(double);
  constexpr int layers = 8;
  const auto in_use = [&] { return cpu->arena().in_use(); };
  const Tensor x = random_tensor(cpu, {1024}, 1);
  const Tensor shift = random_tensor(cpu, {1024}, 2);  // its hook looks at the memory
  const Tensor gain = random_tensor(cpu, {1024}, 3);
  backward(layernorm(x, gain, shift, 1e-5), x.detach());  // gradients are there from now on
  const std::size_t before = in_use();
  std::vector<std::size_t> after_input, at_hook;
  const auto run_once = [&] {
    // gelu does not keep its output, relu not its input: that is the checkpoint's alone.
    const auto out = checkpoint({gelu(x)}, {gain, shift}, [&](Tensors in) {
      Tensor h = relu(in[0]);
      after_input.push_back(in_use());
      in.clear();
      after_input.push_back(in_use());
      h = layernorm(h, gain, shift, 1e-5);
      for (int layer = 0; layer < layers; ++layer)
        h = relu(h);
      return Tensors{h};
    });
    // The input and the result.
    CHECK(in_use() == before + 2 * tensor);
    backward(out[0], x.detach());
  };
  set_gradient_ready_hook(shift, [&] { at_hook.push_back(in_use()); });
  run_once();
  CHECK(in_use() == before);
  REQUIRE(after_input.size() == 4);
  CHECK(after_input[3] == after_input[2] - tensor);
  REQUIRE(at_hook.size() == 1);
  // Memory left after the LayerNorm has run: its gradients on both sides and its statistics, the
  // relu before it, and the result of the checkpoint, which the caller holds.
  CHECK(at_hook[0] == before + 4 * tensor + 2 * Arena::alignment);
}

TEST_CASE("a checkpoint refuses leaves that it was not given", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  const Tensor x = random_tensor(cpu, {2, 3}, 1), w = random_tensor(cpu, {3, 3}, 2);
  const auto out =
      checkpoint({x}, {}, [w](const Tensors& in) { return Tensors{linear(in[0], w)}; });
  const auto message = error_message([&] { backward(out[0], x.detach()); });
  CHECK_THAT(message, Contains("checkpoint"));
  CHECK_THAT(message, Contains("[3, 3]"));
}

TEST_CASE("a graph runs backwards once", "[autograd]") {
  const auto cpu = make_cpu_device(1 << 20);
  const Tensor x = random_tensor(cpu, {3}, 1);
  const Tensor hidden = gelu(x), y = relu(hidden);
  backward(y, x.detach());
  for (const Tensor& again : {y, gelu(hidden)})
    CHECK_THAT(error_message([&] { backward(again, x.detach()); }), Contains("used up"));
}

}  // namespace sluice::test::checkpoint_test
