#include "tests/support/catch.h"
#include "tests/support/gpu/watched_runtime.h"
#include "tests/support/training/training.h"

// A step launches a known number of kernels, and the host waits only when the GPU has work left.

namespace sluice::test::step_launches_test {
namespace {

struct Step {
  std::size_t before, after;  ///< launches
  std::vector<WatchedRuntime::Wait> waits;
};

/// Returns what the third step does: the first ones allocate.
Step third_step(const TrainingTask& task, std::int64_t micro_batch) {
  auto gpu = std::make_unique<WatchedRuntime>(1);
  const WatchedRuntime& watched = *gpu;
  TrainingRun run(task, task.resident(StateLayout::split, micro_batch),
                  std::make_shared<DeviceContext>(std::move(gpu), std::size_t{64} << 20));
  run.train(2);
  const std::size_t before = watched.launches(), waits = watched.waits().size();
  run.step();
  return {before,
          watched.launches(),
          {watched.waits().begin() + static_cast<std::ptrdiff_t>(waits), watched.waits().end()}};
}

TrainingTask task_of(std::int64_t layers, std::int64_t batch = 2) {
  TrainingTask task{.dtype = DType::bf16, .batch_size = batch, .grad_clip = 1};
  task.config.n_layer = layers;
  return task;
}

}  // namespace

TEST_CASE("a step launches so many kernels and products", "[step]") {
  if (!have_gpu()) return;
  const auto launches = [](std::int64_t layers) {
    const Step step = third_step(task_of(layers), 2);
    return step.after - step.before;
  };
  const std::size_t two = launches(2), three = launches(3);
  CHECK(three - two == 25);
  CHECK(two - 2 * (three - two) == 18);
}

TEST_CASE("the host waits for a GPU once in a step, and not for the update", "[step]") {
  if (!have_gpu()) return;
  for (const std::int64_t micro_batch : {4, 2, 1}) {
    const Step step = third_step(task_of(2, 4), micro_batch);
    CAPTURE(micro_batch, step.before, step.after);
    REQUIRE(step.waits.size() == 1);  // for norm and losses
    CHECK(step.waits[0].launched == step.after);
    CHECK(step.waits[0].awaited < step.after);
  }
}

}  // namespace sluice::test::step_launches_test
