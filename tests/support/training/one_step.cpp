#include "tests/support/training/one_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "tests/support/catch.h"
#include "tests/support/training/pipelines.h"

namespace sluice::test {

OneStep one_step(const TrainingTask& task, const MemoryChoice& choice, const Batch& batch,
                 DeviceKind kind) {
  OneStep result;
  std::mutex mutex;
  on_mesh(task, choice, kind, [&](const Ranks& ranks, const DevicePtr& device) {
    TrainingRun run(task, choice, device, {}, ranks);
    Training& training = run.training();
    const TrainStep step =
        training.trainer.step(0, share_of(batch, ranks.replica(), ranks.mesh.dp, task.batch_size));
    const std::lock_guard lock(mutex);
    result.loss = step.loss;
    result.norm = step.gradient_norm;
    for (const auto& slot : training.space.slots())
      if (!slot.shard.divided()) result.gradients[slot.name] = slot.tensor->grad().to_host();
  });
  return result;
}

std::string StepLayout::text() const {
  return fmt::format("dp {}, pp {}, tp {}, micro-batch {} {}{}{}", dp, pp, tp, micro_batch,
                     pipeline, sequence_parallel ? " sequence-parallel" : "",
                     recompute == Recompute::none ? "" : " recompute");
}

OneStep one_step(TrainingTask task, const StepLayout& layout, const Batch& batch, DeviceKind kind) {
  task.dp = layout.dp;
  task.pp = layout.pp;
  task.tp = layout.tp;
  task.pipeline = layout.pipeline;
  if (!task.pipeline.empty()) task.stash = "auto";
  task.sequence_parallel = layout.sequence_parallel;
  MemoryChoice choice = task.resident(StateLayout::fp32, layout.micro_batch);
  choice.placement.set_recompute(layout.recompute);
  return one_step(task, choice, batch, kind);
}

void check_close(const OneStep& actual, const OneStep& expected, double bound) {
  CHECK(std::abs(actual.loss - expected.loss) <= bound * expected.loss);
  CHECK(std::abs(actual.norm - expected.norm) <= bound * expected.norm);
  CHECK(!actual.gradients.empty());
  for (const auto& [name, values] : actual.gradients) {
    const Values& wanted = expected.gradients.at(name);
    double largest = 0, apart = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(wanted[i]));
      apart = std::max(apart, std::abs(values[i] - wanted[i]));
    }
    CAPTURE(name, largest, apart);
    CHECK(apart <= bound * largest);
  }
}

}  // namespace sluice::test
