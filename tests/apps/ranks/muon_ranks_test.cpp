#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "models/lora/targets.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/space.h"
#include "tests/support/training/pipelines.h"
#include "tests/support/training/tensor_ranks.h"

// Training by Muon where ranks divide the matrices it orthogonalizes. Ranks are threads here.

namespace sluice::test::muon_ranks_test {
namespace {

constexpr int steps = 20;

TrainingTask task_for(const std::string& family, const std::string& optimizer = "muon") {
  TrainingTask task{.batch_size = 4, .grad_clip = 1, .optimizer = optimizer};
  task.config = small_model(family == "adapters" ? "tinyllama-1.1b" : family.c_str(), 2);
  if (family == "adapters")
    task.config.lora = {.rank = 8, .alpha = 6, .targets = lora_targets(task.config, "all")};
  return task;
}

struct Trained {
  std::map<std::string, Values> initial;
  std::map<std::string, double> first_update;  ///< norm of the change of every matrix
  std::vector<double> losses;
};

Trained train(const TrainingTask& task, DeviceKind kind = DeviceKind::cpu) {
  Assembled before, after;
  Trained trained;
  std::mutex mutex;
  std::vector<std::string> matrices;
  const MemoryChoice choice = task.resident();
  on_mesh(task, choice, kind, [&](const Ranks& ranks, const DevicePtr& device) {
    TrainingRun run(task, choice, device, {}, ranks);
    const ParameterSpace& space = run.training().space;
    const auto add_weights = [&](Assembled& all) {
      run.training().parallel.optimizer.synchronize();
      const Tensor weights = flat_weights(space);
      for (const auto& slot : space.slots())
        all.add(slot, weights.slice(slot.offset, {slot.size}).to_host());
    };
    add_weights(before);
    run.step();
    add_weights(after);
    for (int i = 1; i < steps; ++i)
      run.step();
    run.training().require_equal_copies("at the end");
    const std::lock_guard lock(mutex);
    for (const auto& slot : space.slots())
      if (slot.hidden()) matrices.push_back(slot.name);
    trained.losses.clear();
    for (const TrainStep& step : run.steps())
      trained.losses.push_back(step.loss);
  });
  CHECK(after.differences() == std::vector<std::string>());
  trained.initial = before.values();
  for (const std::string& name : matrices) {
    double squares = 0;
    for (std::size_t i = 0; i < after.values().at(name).size(); ++i)
      squares += std::pow(after.values().at(name)[i] - before.values().at(name)[i], 2);
    trained.first_update[name] = std::sqrt(squares);
  }
  return trained;
}

void require_near(const Trained& actual, const Trained& expected) {
  CHECK((actual.initial == expected.initial));
  REQUIRE(actual.first_update.size() == expected.first_update.size());
  for (const auto& [name, norm] : expected.first_update) {
    INFO(name);
    CHECK(actual.first_update.at(name) == Approx(norm).epsilon(1e-3));
  }
  REQUIRE(actual.losses.size() == steps);
  for (std::size_t i = 0; i < steps; ++i) {
    INFO("step " << i + 1);
    CHECK(actual.losses[i] == Approx(expected.losses[i]).epsilon(1e-4));
  }
}

/// The bits of every shard, by its number.
using ShardBits = std::map<int, RunBits>;

ShardBits train_shards(const TrainingTask& task, const MemoryChoice& choice) {
  ShardBits all;
  std::mutex mutex;
  on_mesh(task, choice, DeviceKind::cpu, [&](const Ranks& ranks, const DevicePtr& device) {
    TrainingRun run(task, choice, device, {}, ranks);
    for (int i = 0; i < 4; ++i)
      run.step();
    RunBits mine = bits_by_name(run);
    run.training().require_equal_copies("at the end");
    const std::lock_guard lock(mutex);
    if (ranks.replica() == 0) all[ranks.shard()] = std::move(mine);
  });
  return all;
}

}  // namespace

TEST_CASE("Muon takes the steps of one process, however many ranks divide the matrices",
          "[ranks][tensor][muon][threads]") {
  struct Row {
    const char* family;
    std::int64_t tp, pp = 1;
    bool divides_tokens = false;
  };
  // Four ranks share two heads of k and v.
  const std::vector<Row> rows{
      {"gpt2", 2},           {"gpt2", 4},        {"gpt2", 2, 2},    {"tinyllama-1.1b", 2, 1, true},
      {"tinyllama-1.1b", 4}, {"pythia-160m", 4}, {"gptj-6b", 2, 2}, {"adapters", 2},
      {"adapters", 4}};
  std::map<std::string, Trained> alone;
  for (const Row& row : rows) {
    CAPTURE(row.family, row.tp, row.pp);
    TrainingTask task = task_for(row.family);
    if (!alone.contains(row.family)) alone[row.family] = train(task);
    const Trained& expected = alone.at(row.family);
    CHECK(expected.losses.back() < expected.losses.front());
    task.tp = row.tp;
    task.pp = row.pp;
    task.sequence_parallel = row.divides_tokens;
    require_near(train(task), expected);
  }
}

TEST_CASE("initial values, clipping, decay and updates are those of whole tensors",
          "[ranks][tensor][threads]") {
  for (const std::string optimizer : {"adamw", "sgd"})
    for (const std::string family : {"gpt2", "tinyllama-1.1b", "adapters"}) {
      CAPTURE(optimizer, family);
      TrainingTask task = task_for(family, optimizer);
      task.grad_clip = 0.01;  // all updates are clipped
      const Trained expected = train(task);
      for (const std::int64_t tp : {2, 4}) {
        CAPTURE(tp);
        task.tp = tp;
        require_near(train(task), expected);
      }
    }
}

TEST_CASE("GPUs that divide the matrices take Muon's steps of one process too",
          "[ranks][tensor][muon][threads]") {
  if (!have_gpu()) return;
  TrainingTask task = task_for("tinyllama-1.1b");
  const Trained expected = train(task);
  task.tp = 4;
  require_near(train(task, DeviceKind::cuda), expected);
}

TEST_CASE("shards of uneven sizes share Muon's state and move it without changing a bit",
          "[ranks][tensor][muon][threads]") {
  TrainingTask task{
      .config = {.n_layer = 3, .n_head = 5, .n_embd = 80, .vocab_size = 61, .n_positions = 16},
      .batch_size = 4,
      .grad_clip = 0.5,
      .optimizer = "muon"};
  task.dp = 2;
  task.tp = 2;
  const MemoryChoice resident = task.resident(StateLayout::fp32, 2);  // one micro-batch a rank
  const ShardBits whole = train_shards(task, resident);
  REQUIRE(whole.size() == 2);
  // The shards are of 3 and 2 heads. Buckets of these sizes would end at other tensors in each.
  for (const char* bucket : {"16KiB", "100KiB", "200KiB"})
    for (const std::int64_t zero : {0, 1, 2})
      for (const bool away : {false, true}) {
        CAPTURE(bucket, zero, away);
        task.bucket_size = bucket;
        task.zero = zero;
        const ShardBits actual =
            train_shards(task, away ? offloaded(resident, 1, 5000, 2) : resident);
        for (const int shard : {0, 1}) {
          CAPTURE(shard);
          CHECK(first_difference(whole.at(shard), actual.at(shard)) == "");
        }
      }
}

}  // namespace sluice::test::muon_ranks_test
