#include <cmath>
#include <optional>

#include "optim/make_optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"

// Updates that begin before a step's gradients are all there, against those of an optimizer that
// waits and has all of its state on the device.

namespace sluice::test::speculative_updates_test {
namespace {

struct Matrices {
  std::vector<Tensor> tensors{4};
  std::vector<Parameter> parameters;
  ParameterSpace space;
  std::unique_ptr<Optimizer> optimizer;
  Tensor scale;

  /// `from`: the first matrix whose updates are speculative; 0: all state is on the device.
  Matrices(const DevicePtr& device, DType working, std::size_t from)
      : parameters{{"a", {64, 80}, Initial::normal(0.5), &tensors[0]},
                   {"b", {70, 60}, Initial::normal(0.5), &tensors[1], false, 1},
                   {"c", {90, 70}, Initial::normal(0.5), &tensors[2], false, 2},
                   {"d", {66, 65}, Initial::normal(0.5), &tensors[3], false, 3}},
        space(parameters, device, working, ParameterSpace::Use::training,
              {.layout = working == DType::bf16 ? StateLayout::split : StateLayout::fp32,
               .chunk = 2000,
               .residency = residency(from),
               .host = make_host_memory(device, 1 << 20, 1 << 20)}),
        optimizer(make_adamw(space, {}, 2)) {
    space.initialize(3);
  }

  /// Gradients from the last matrix to the first, of which the optimizer is told where somebody has
  /// guessed the scale.
  void backward(std::uint64_t seed, std::optional<double> guess) {
    optimizer->finish();
    space.forget_gradients();
    if (guess) optimizer->speculate(1e-2, *guess);
    for (std::size_t i = tensors.size(); i > 0; --i) {
      const auto& slot = space.slots()[i - 1];
      test::set_gradient(space, slot, test::random_values(slot.size, 10 * seed + i));
      // The last one is left to the step.
      if (guess && i > 2) optimizer->speculate_down_to(slot.offset);
    }
  }
  static std::vector<Residency> residency(std::size_t from) {
    if (from == 0) return {};
    std::vector<Residency> all(4, Residency::speculative);
    std::fill_n(all.begin(), from, Residency::streamed);
    all[0] = Residency::device;
    return all;
  }
  void step(double factor) {
    scale = Tensor::from_host(space.device(), {1}, accumulator_of(space.working().dtype()),
                              std::vector{factor});
    optimizer->step(1e-2, scale);
    if (!std::isfinite(factor)) optimizer->roll_back();
  }

  auto all() { return test::everything(space, *optimizer); }
};

struct Step {
  double factor;
  std::optional<double> guess{};
};

/// Right and wrong guesses, factors that are not finite, and steps of which nobody was told.
const std::vector<Step> steps{{1, 1},      {0.5, 1}, {0.25, 0.25}, {1, 1}, {double(NAN), 1},
                              {1, 1},      {0.5, 1}, {0.5, 1},     {1},    {double(NAN)},
                              {0.5, 0.25}, {1, 1},   {0.25},       {1, 1}, {INFINITY, 1},
                              {0.125, 1}};

void check_steps(const DevicePtr& reference, const DevicePtr& device, DType working,
                 std::size_t from) {
  Matrices here(reference, working, 0), ahead(device, working, from);
  std::int64_t undone = 0;
  std::uint64_t seed = 0;
  for (const auto& [factor, guess] : steps) {
    CAPTURE(seed, factor, guess.value_or(-1));
    here.backward(++seed, {});
    here.step(factor);
    ahead.backward(seed, guess);
    ahead.step(factor);
    undone += guess && *guess != factor;
    CHECK(ahead.optimizer->undone() == undone);
    // Sometimes the next step finds the updates of this one under way.
    if (seed % 3 == 0) CHECK((here.all() == ahead.all()));
  }
  CHECK((here.all() == ahead.all()));
  CHECK(here.optimizer->updates() == ahead.optimizer->updates());
}

}  // namespace

TEST_CASE("updates that begin before a step change no bit, right or wrong", "[speculation]") {
  for (const DeviceKind kind : test::device_kinds())
    for (const DType working : {DType::f32, DType::bf16, DType::f16})
      for (const std::size_t from : {1u, 2u, 3u})
        for (std::uint64_t seed = 1; seed <= 4; ++seed) {
          if (!in_form(2, {static_cast<std::int64_t>(from + seed), working == DType::bf16}))
            continue;
          CAPTURE(static_cast<int>(kind), name_of(working), from, seed);
          const auto device = [&](std::uint64_t at) {
            return kind == DeviceKind::cuda ? test::open_gpu(at) : make_cpu_device(64 << 20);
          };
          check_steps(device(9), device(seed), working, from);
        }
}

TEST_CASE("what a step moves twice counts twice", "[speculation]") {
  Matrices it(make_cpu_device(64 << 20), DType::bf16, 1);
  const auto moved_by = [&](double factor) {
    it.backward(1, 1);
    it.step(factor);
    it.backward(1, 1);  // begins the next round
    const StreamedBytes moved = it.optimizer->moved();
    it.optimizer->cancel();
    return moved;
  };
  const StreamedBytes once = moved_by(1), twice = moved_by(0.5), none = moved_by(double(NAN));
  std::size_t weights = 0;
  for (const Chunk& chunk : it.space.chunks())
    if (chunk.residency == Residency::speculative)
      weights += static_cast<std::size_t>(chunk.size) * 2;
  CHECK(once.to_device > 0);
  CHECK(once.to_host == once.to_device + weights);
  CHECK(twice.to_device == 2 * once.to_device + weights);
  CHECK(twice.to_host == 2 * once.to_device + weights);
  CHECK(none.to_host == once.to_host);
}

TEST_CASE("what was speculated on and never stepped leaves no trace", "[speculation]") {
  for (const DeviceKind kind : test::device_kinds())
    for (const DType working : {DType::f32, DType::bf16})
      for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        CAPTURE(static_cast<int>(kind), name_of(working), seed);
        Matrices it(kind == DeviceKind::cuda ? test::open_gpu(seed) : make_cpu_device(64 << 20),
                    working, 1);
        it.backward(1, 1);
        it.step(1);
        const auto before = it.all();
        it.backward(2, 1);
        it.optimizer->speculate_down_to(0);
        it.optimizer->cancel();
        std::vector<std::byte> weights(it.space.working().flat().bytes());
        it.space.working().flat().copy_bytes_to(weights);
        CHECK((weights == before.front()));
        CHECK((it.all() == before));
        it.backward(3, 1);
        it.space.working().flat().copy_bytes_to(weights);
        CHECK((weights != before.front()));  // they are being changed already
        it.step(double(NAN));
        CHECK((it.all() == before));
      }
}

}  // namespace sluice::test::speculative_updates_test
