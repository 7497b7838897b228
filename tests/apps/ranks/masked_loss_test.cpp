#include <fmt/format.h>

#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>

#include "kernels/cross_entropy.h"
#include "models/decoder/config_json/config_file.h"
#include "models/decoder/weights.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/training/pipelines.h"

// Targets that do not count: the loss is the mean of those that do, over all micro-batches and
// ranks, as a program in NumPy computes it in float64.

namespace sluice::test::masked_loss_test {
namespace {

struct Layout {
  std::int64_t dp, pp, tp, micro_batch;
};
constexpr Layout layouts[] = {{1, 1, 1, 4}, {1, 1, 1, 1}, {2, 1, 1, 2}, {2, 1, 1, 1}, {1, 2, 1, 4},
                              {1, 2, 1, 1}, {1, 1, 2, 4}, {1, 1, 2, 1}, {2, 2, 1, 1}, {2, 1, 2, 2}};

TrainingTask task_of(const Fixture& fixture, DType dtype, const Layout& layout) {
  TrainingTask task{.config = read_config(fixture.model() / "config.json"),
                    .dtype = dtype,
                    .batch_size = fixture.hyper("batch"),
                    .seq_len = fixture.hyper("seq")};
  task.dp = layout.dp;
  task.pp = layout.pp;
  task.tp = layout.tp;
  return task;
}

/// Returns the fixture's first batch with the targets of a mask, a string of 0 and 1.
Batch batch_of(const Fixture& fixture, const std::string& mask) {
  Batch batch{{.tokens = fixture.ids("input_ids"), .targets = fixture.ids("targets")}, 0, 0};
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == '0') batch.targets[i] = no_target;
    *batch.counted += mask[i] == '1' ? 1 : 0;
  }
  return batch;
}

struct Bounds {
  double loss, gradient;
};

/// Trains one step with the mask and returns what is wrong with it, on any rank.
std::vector<std::string> step_with(const Fixture& fixture, const Json& masked,
                                   const TrainingTask& task, std::int64_t micro_batch,
                                   DeviceKind kind, const Bounds& bounds) {
  std::vector<std::string> wrong;
  std::mutex mutex;
  const MemoryChoice choice = task.resident(StateLayout::fp32, micro_batch);
  const Batch batch = batch_of(fixture, masked.at("mask").get<std::string>());
  on_mesh(task, choice, kind, [&](const Ranks& ranks, const DevicePtr& device) {
    TrainingRun run(task, choice, device, {}, ranks);
    Training& training = run.training();
    load_weights(fixture.model(), task.config, training.space);
    const int replicas = ranks.mesh.dp;
    const TrainStep step = training.trainer.step(
        0, replicas == 1 ? batch : share_of(batch, ranks.replica(), replicas, task.batch_size));
    const std::lock_guard lock(mutex);
    const auto compare = [&](const std::string& what, double actual, double expected,
                             double bound) {
      if (!(std::abs(actual - expected) <= bound))
        wrong.push_back(fmt::format("{} is {}, not {}", what, actual, expected));
    };
    const double norm = masked.at("grad_norm");
    compare("loss", step.loss, masked.at("loss"), bounds.loss);
    compare("norm", step.gradient_norm, norm, bounds.gradient * norm);
    for (const auto& slot : training.space.slots()) {
      if (slot.shard.divided()) continue;
      const Values gradient = slot.tensor->grad().to_host();
      for (const StoredSlice& slice : slot.stored()) {
        const auto& [at, value] =
            masked.at("largest").at(slice.name).get<std::pair<std::size_t, double>>();
        compare(slice.name, gradient.at(static_cast<std::size_t>(slice.first) + at), value,
                bounds.gradient * std::abs(value));
      }
    }
  });
  return wrong;
}

}  // namespace

TEST_CASE("a loss of some targets is the mean of theirs, in every layout", "[ranks][mask]") {
  const ThreadCount one(1);
  const std::string folder = fixture_folders().front();
  for (const std::string name : {"tiny", "llama"}) {
    const Fixture fixture(folder, name);
    const Json& masks = fixture.json().at("masked");
    for (const Layout& layout : layouts) {
      if (fixture.hyper("batch") % (layout.dp * layout.micro_batch) != 0) continue;
      for (std::size_t i = 0; i < masks.size(); ++i) {
        if (!in_form(3, {&layout - layouts, static_cast<std::int64_t>(i)}) && i + 1 < masks.size())
          continue;
        CAPTURE(name, layout.dp, layout.pp, layout.tp, layout.micro_batch, i);
        const auto check = [&](DType dtype, DeviceKind kind, const Bounds& bounds) {
          CHECK(step_with(fixture, masks[i], task_of(fixture, dtype, layout), layout.micro_batch,
                          kind, bounds) == std::vector<std::string>());
        };
        check(DType::f64, DeviceKind::cpu, {1e-12, 1e-9});
        check(DType::f32, DeviceKind::cpu, {1e-6, 1e-5});
        if (have_gpu() && in_form(4, {&layout - layouts, static_cast<std::int64_t>(i)}))
          check(DType::f32, DeviceKind::cuda, {1e-6, 1e-5});
      }
    }
  }
}

TEST_CASE("a batch of which no target counts changes nothing", "[mask]") {
  const ThreadCount one(1);
  const Fixture fixture(fixture_folders().front(), "tiny");
  const TrainingTask task = task_of(fixture, DType::f32, layouts[0]);
  TrainingRun run(task, task.resident(), make_cpu_device());
  const RunBits before = run.bits();
  const TrainStep step = run.training().trainer.step(
      0, batch_of(fixture, std::string(fixture.ids("targets").size(), '0')));
  CHECK_FALSE(step.applied);
  CHECK(step.reason == "no target of the batch counts");
  CHECK(first_difference(run.bits(), before) == "");
}

}  // namespace sluice::test::masked_loss_test
