#include <mutex>
#include <numeric>

#include "parallel/pipeline/schedule_text.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/pipelines.h"

// Validation goes forward alone, in an order of its own: the loss of one process, wherever the
// stages are. Ranks are threads here.

namespace sluice::test::pipeline_validation_test {
namespace {

TrainingTask task_for(std::int64_t layers, std::int64_t micro_batches) {
  return {
      .config = {.n_layer = layers, .n_head = 2, .n_embd = 32, .vocab_size = 80, .n_positions = 8},
      .batch_size = micro_batches,
      .seq_len = 8,
      .dropout = 0.1};
}

/// The loss as every rank has it.
std::vector<double> losses_of(const TrainingTask& task, std::int64_t batches, double timeout = 60) {
  const auto tokens = tokens_in_memory(random_ids(8 * 23 + 3, 80, 3));
  const MemoryChoice choice = task.resident();
  std::vector<double> losses;
  std::mutex mutex;
  const auto body = [&](const Ranks& ranks, const DevicePtr& device) {
    TrainingRun run(task, choice, device, {}, ranks);
    const double loss = run.training().trainer.evaluate(
        *tokens, EvaluationBatches(tokens->size(), batches, task.seq_len, 1));
    run.step();  // and training goes on
    const std::lock_guard lock(mutex);
    losses.push_back(loss);
  };
  on_mesh(task, choice, DeviceKind::cpu, body, {.timeout = timeout});
  return losses;
}

/// One micro-batch through all stages and back.
Schedule there_and_back(const std::vector<int>& rank_of_stage, std::size_t ranks) {
  Schedule schedule{.stages = static_cast<int>(rank_of_stage.size()), .micro_batches = 1};
  schedule.ranks.resize(ranks);
  const auto add = [&](Action::Kind kind, int stage) {
    const int rank = rank_of_stage[static_cast<std::size_t>(stage)];
    schedule.ranks[static_cast<std::size_t>(rank)].push_back({kind, stage, 0});
  };
  for (int stage = 0; stage < schedule.stages; ++stage)
    add(Action::Kind::forward, stage);
  for (int stage = schedule.stages; stage-- > 0;)
    add(Action::Kind::backward, stage);
  return schedule;
}

}  // namespace

TEST_CASE("validation in a pipeline is that of one process", "[ranks][pipeline][threads]") {
  for (const std::int64_t batches : {1, 2, 9, 100}) {
    CAPTURE(batches);
    TrainingTask task = task_for(4, 4);
    const double expected = losses_of(task, batches)[0];
    task.pipeline = "interleaved";
    task.pp = task.virtual_stages = 2;
    CHECK(losses_of(task, batches) == std::vector(2, expected));
    task.dp = 2;
    CHECK(losses_of(task, batches) == std::vector(4, expected));
  }
}

TEST_CASE("validation ends wherever a rank has its second stage", "[ranks][pipeline][threads]") {
  const TempDir folder;
  TrainingTask task = task_for(11, 1);
  task.pipeline = "1f1b";
  const double expected = losses_of(task, 23)[0];
  task.pp = 10;
  task.pipeline = (folder.path() / "schedule.csv").string();
  // Stages on ranks 0 to 9 in turn, and one more on rank 0 among them. With one rank between its
  // two, ten micro-batches could not all go through the first before the second: that rank waits
  // for rank 0 to receive, and rank 0 for it. Where stages go round, that is how they do go.
  for (const int again : {2, 3, 6, 10}) {
    CAPTURE(again);
    std::vector<int> rank_of_stage(10);
    std::iota(rank_of_stage.begin(), rank_of_stage.end(), 0);
    rank_of_stage.insert(rank_of_stage.begin() + again, 0);
    write_file(task.pipeline, to_csv(there_and_back(rank_of_stage, 10)));
    CHECK(losses_of(task, 23, 20) == std::vector(10, expected));
  }
}

}  // namespace sluice::test::pipeline_validation_test
