#include <cmath>

#include "optim/make_optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"

// An optimizer whose chunks are updated on the device, pass through it, or are updated by the CPU
// where they rest, against one whose chunks are all on the device.

namespace sluice::test::cpu_updater_test {
namespace {

struct Matrices {
  std::vector<Tensor> tensors{3};
  std::vector<Parameter> parameters;
  ParameterSpace space;
  std::unique_ptr<Optimizer> optimizer;

  Matrices(const DevicePtr& device, DType working, bool away, bool sgd)
      : parameters{{"a", {64, 80}, Initial::normal(0.5), &tensors[0]},
                   {"b", {70, 60}, Initial::normal(0.5), &tensors[1], false, 1},
                   {"c", {90, 70}, Initial::normal(0.5), &tensors[2], false, 2}},
        space(
            parameters, device, working, ParameterSpace::Use::training,
            {.chunk = 2000,
             .residency = away ? std::vector{Residency::device, Residency::streamed, Residency::cpu}
                               : std::vector<Residency>{},
             .host = make_host_memory(device, 1 << 20, 1 << 20)}),
        optimizer(sgd ? make_sgd(space, {}, 2) : make_adamw(space, {}, 2)) {
    space.initialize(3);
  }

  void step(std::uint64_t seed, double scale) {
    begin_step(seed, scale);
    optimizer->finish();
  }
  /// Leaves the updates of chunks whose state is in host memory pending.
  void begin_step(std::uint64_t seed, double scale) {
    space.forget_gradients();
    const DType dtype = accumulator_of(space.working().dtype());
    for (const auto& slot : space.slots())
      set_gradient(space, slot, random_values(slot.size, seed++));
    scale_ = Tensor::from_host(space.device(), {1}, dtype, std::vector{scale});
    optimizer->step(1e-2, scale_);
  }
  auto all() { return everything(space, *optimizer); }

 private:
  Tensor scale_;
};

}  // namespace

TEST_CASE("where a chunk is updated changes no bit", "[optimizer]") {
  for (const DeviceKind kind : device_kinds())
    for (const DType working : {DType::f32, DType::bf16, DType::f16})
      for (const bool sgd : {false, true})
        for (std::uint64_t seed = 1; seed <= 3; ++seed) {
          CAPTURE(static_cast<int>(kind), name_of(working), sgd, seed);
          const auto device = [&](std::uint64_t at) {
            return kind == DeviceKind::cuda ? open_gpu(at) : make_cpu_device(64 << 20);
          };
          Matrices here(device(9), working, false, sgd), away(device(seed), working, true, sgd);
          CHECK(away.optimizer->streams());
          CHECK(away.optimizer->shares_cpu());
          std::uint64_t step = 0;
          for (const double scale : {1.0, 0.5, double(NAN), 0.25, double(INFINITY), 1.0}) {
            const auto before = away.all();
            here.step(++step, scale);
            away.step(step, scale);
            CHECK(here.all() == away.all());
            CHECK((away.all() == before) == !std::isfinite(scale));
          }
        }
}

TEST_CASE("the CPU updates chunks of its own while others are on their way", "[optimizer]") {
  if (!have_gpu()) return;
  Matrices here(open_gpu(9), DType::bf16, false, false);
  here.step(1, 1);
  std::int64_t early = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    Matrices away(open_gpu(seed), DType::bf16, true, false);
    Timeline timeline(away.space.device());
    away.optimizer->set_timeline(&timeline);
    away.begin_step(1, 1);
    away.optimizer->update_through(away.space.find("c")->offset);
    for (const Timeline::Span& span : timeline.take())
      early += span.name == "cpu update";
    away.optimizer->finish();
    CHECK(here.all() == away.all());
  }
  // A GPU may be too fast for it.
  if (here.space.device()->runtime().info().emulated) CHECK(early > 0);
}

TEST_CASE("work that is queued after an update reads the weights of the CPU's chunks",
          "[optimizer]") {
  if (!have_gpu()) return;
  Matrices here(open_gpu(9), DType::bf16, false, false);
  here.step(1, 1);
  const auto expected = here.tensors[2].to_host();
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    const DevicePtr device = open_gpu(seed);
    Matrices away(device, DType::bf16, true, false);
    const Tensor& weights = away.tensors[2];
    const Tensor copy = Tensor::empty(device, weights.shape(), weights.dtype());
    away.begin_step(1, 1);
    away.optimizer->update_through(away.space.size());
    device->runtime().copy_within(copy.view().address, weights.view().address, weights.bytes(),
                                  device->stream());
    CHECK(copy.to_host() == expected);
  }
}

TEST_CASE("a round of the CPU's updates that is given up leaves no trace", "[optimizer]") {
  for (const DeviceKind kind : device_kinds()) {
    const auto device = [&](std::uint64_t at) {
      return kind == DeviceKind::cuda ? open_gpu(at) : make_cpu_device(64 << 20);
    };
    Matrices here(device(9), DType::bf16, false, false), away(device(2), DType::bf16, true, false);
    for (Matrices* one : {&here, &away}) {
      one->step(1, 1);
      const Tensor scale =
          Tensor::from_host(one->space.device(), {1}, DType::f32, std::vector{double(NAN)});
      one->optimizer->step(1e-2, scale);
      one->optimizer->roll_back();
      one->step(2, 1);
    }
    CHECK(here.all() == away.all());
  }
}

}  // namespace sluice::test::cpu_updater_test
