#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"
#include "tests/support/training/training.h"

// Ways to hold memory that change no bit of a training, and the one that changes only the order of
// sums.

namespace sluice::test::equal_training_test {
namespace {

const int steps = by_form(6, 20);

DevicePtr device_of(DeviceKind kind) {
  return kind == DeviceKind::cuda ? open_gpu(1) : make_cpu_device(64 << 20);
}

}  // namespace

TEST_CASE("a split master weight trains as an fp32 one, bit for bit", "[split]") {
  for (const DeviceKind kind : device_kinds()) {
    CAPTURE(static_cast<int>(kind));
    const TrainingTask task{.dtype = DType::bf16, .batch_size = 4, .grad_clip = 1.5};
    TrainingRun whole(task, task.resident(StateLayout::fp32, 2), device_of(kind));
    TrainingRun split(task, task.resident(StateLayout::split, 2), device_of(kind));
    CHECK(split.device()->arena().in_use() < whole.device()->arena().in_use());
    CHECK(first_difference(whole.train(steps), split.train(steps)) == "");
    CHECK(whole.steps().back().loss < whole.steps().front().loss);
    // A split weight whose upper half were rounded to even would drift from the working weight.
    int lower_bits = 0;
    for (const double weight : flat_weights(split.training().space).to_host())
      lower_bits += static_cast<float>(BFloat16(static_cast<float>(weight))) != weight;
    CHECK(lower_bits > split.training().space.size() / 2);
  }
}

TEST_CASE("on the CPU too, state in a memory of its own changes no bit", "[offload]") {
  for (const StateLayout layout : {StateLayout::fp32, StateLayout::split}) {
    const TrainingTask task{.dtype = DType::bf16, .batch_size = 2, .grad_clip = 1.5};
    TrainingRun resident(task, task.resident(layout), device_of(DeviceKind::cpu));
    TrainingRun streaming(task, offloaded(task.resident(layout), 1, 3000, 2),
                          device_of(DeviceKind::cpu));
    CHECK(streaming.training().optimizer->streams());
    CHECK(first_difference(resident.train(steps), streaming.train(steps)) == "");
  }
}

TEST_CASE("recompute changes no bit of a training", "[recompute]") {
  const std::int64_t few = by_form(2, 4);
  for (const DeviceKind kind : device_kinds())
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      if (kind == DeviceKind::cpu && dtype == DType::f16) continue;
      CAPTURE(static_cast<int>(kind), name_of(dtype));
      const TrainingTask task{
          .dtype = dtype, .batch_size = 2, .seq_len = 8, .grad_clip = 1.5, .dropout = 0.2};
      MemoryChoice choice = task.resident();
      TrainingRun none(task, choice, device_of(kind));
      const RunBits expected = none.train(few);
      for (const char* modes :
           {"gelu", "gelu+ln", "block", "block*1,gelu+ln*1,gelu", "none*1,block*1,none"}) {
        CAPTURE(modes);
        // The two that mix all modes.
        const bool mixed = std::string_view(modes).find(',') != std::string_view::npos;
        if (!long_form() && kind == DeviceKind::cuda && !mixed) continue;
        choice = recomputing(choice, modes);
        TrainingRun run(task, choice, device_of(kind));
        CHECK(first_difference(run.train(few), expected) == "");
        CHECK(run.device()->arena().peak() < none.device()->arena().peak());
      }
    }
}

TEST_CASE("one micro-batch of eight is eight of one, but for the order of sums", "[accumulation]") {
  for (const DeviceKind kind : device_kinds()) {
    CAPTURE(static_cast<int>(kind));
    const TrainingTask task{.batch_size = 8, .grad_clip = 1.5};
    TrainingRun whole(task, task.resident(StateLayout::fp32, 8), device_of(kind));
    TrainingRun pieces(task, task.resident(StateLayout::fp32, 1), device_of(kind));
    for (int step = 0; step < steps; ++step) {
      const TrainStep &a = whole.step(), &b = pieces.step();
      CAPTURE(step, a.loss, b.loss, a.gradient_norm, b.gradient_norm);
      CHECK(a.loss == Approx(b.loss).epsilon(1e-6));
      CHECK(a.gradient_norm == Approx(b.gradient_norm).epsilon(step == 0 ? 1e-6 : 1e-5));
      if (step > 0) continue;
      // Later steps' gradients belong to weights that rounding has moved apart.
      const Tensor left = flat_gradients(whole.training().space);
      const Tensor right = flat_gradients(pieces.training().space);
      CHECK(relative_l2(left.to_host(), right.to_host()) <= 1e-6);
    }
    CHECK(relative_l2(flat_weights(whole.training().space).to_host(),
                      flat_weights(pieces.training().space).to_host()) <= 1e-5);
  }
}

}  // namespace sluice::test::equal_training_test
