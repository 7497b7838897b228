#include <cmath>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "apps/checkpoint/checkpoint_saver.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gradcheck.h"
#include "tests/support/program.h"
#include "tests/support/spoil.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/pipelines.h"

// Updates that are skipped for what their loss or gradient norm is among those before, the loss
// scale beside them, and batches that a resumed run leaves out.

namespace sluice::test::spikes_test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// As the trainer uses it: whether an update was skipped.
bool skips(SpikeGuard& guard, double loss, double norm) {
  if (!guard.reason_to_skip(loss, norm).empty()) return true;
  guard.keep(loss, norm);
  return false;
}

/// The z-score by its definition.
double z_score(const std::vector<double>& window, double value) {
  double mean = 0, variance = 0;
  for (const double one : window)
    mean += one / static_cast<double>(window.size());
  for (const double one : window)
    variance += (one - mean) * (one - mean) / static_cast<double>(window.size());
  return (value - mean) / std::sqrt(variance);
}

/// A run of which one step has a loss far above that of the others.
struct SpikedRun {
  TrainingTask task;
  SpikeGuard::Options options{.loss = 20, .gradient_norm = 0, .window = 4};
  std::int64_t spike = 7;

  const TrainStep& step(TrainingRun& run) const {
    if (run.step_number() != spike) return run.step();
    std::vector<Change> changes;
    for (std::int64_t i = 0; i < task.config.n_embd; ++i)
      changes.push_back({"ln_f.weight", i, 300});
    const auto good = change_weights(run, changes);
    const TrainStep& result = run.step();
    change_weights(run, good);
    return result;
  }
  void guard(TrainingRun& run) const { run.training().trainer.spikes() = SpikeGuard(options); }
};

TrainingTask small_task(DType dtype = DType::f32) {
  return {.dtype = dtype, .seq_len = 8, .grad_clip = 1.5, .dropout = 0.1};
}

/// All ranks skip the spike alone, and it leaves no trace.
void skip_spike(const TrainingTask& task, const MemoryChoice& choice, DeviceKind kind) {
  const SpikedRun spiked{.task = task};
  CAPTURE(task.dp.value_or(1), task.zero, task.pp, task.tp, name_of(task.dtype));
  std::mutex mutex;
  on_mesh(task, choice, kind, [&](const Ranks& ranks, const DevicePtr& device) {
    const auto train = [&](bool with_spike) {
      TrainingRun run(task, choice, device, {}, ranks);
      spiked.guard(run);
      while (run.step_number() < 10) {
        if (run.step_number() == spiked.spike && !with_spike) {
          run.continue_from(spiked.spike + 1);
          continue;
        }
        const TrainStep& step = spiked.step(run);
        const bool skipped = run.step_number() == spiked.spike + 1;
        const std::lock_guard lock(mutex);
        CHECK(step.applied != skipped);
        CHECK(step.reason.empty() != skipped);
        if (skipped) CHECK_THAT(step.reason, Contains("the loss"));
      }
      RunBits bits = bits_by_name(run);
      bits.steps = {{static_cast<double>(run.training().optimizer->updates())}};
      const std::string guard = run.training().trainer.spikes().state().dump();
      const auto bytes = std::as_bytes(std::span(guard));
      bits.values["guard"] = {bytes.begin(), bytes.end()};
      return bits;
    };
    const RunBits with = train(true), without = train(false);
    const std::lock_guard lock(mutex);
    CHECK(with.steps == std::vector<std::vector<double>>{{9}});
    CHECK(first_difference(with, without) == "");
  });
}

}  // namespace

TEST_CASE("an update is a spike from its limit on, once the window is full", "[guards]") {
  SpikeGuard guard({.loss = 3, .gradient_norm = 0, .window = 4});
  std::vector<double> window{2.0, 2.25, 1.75, 2.0};
  CHECK_FALSE(skips(guard, 2.0, 1));
  CHECK_FALSE(skips(guard, 2.25, 1e30));  // nobody asked for norms
  CHECK_FALSE(skips(guard, 1.75, 1));
  CHECK_FALSE(skips(guard, 2.0, 1));
  const double deviation = std::sqrt(0.125 / 4);
  CHECK(z_score(window, 2 + 3 * deviation) == Approx(3));
  CHECK(skips(guard, 2 + 3.01 * deviation, 1));
  CHECK(skips(guard, 1e30, 1));
  CHECK_THAT(guard.reason_to_skip(2 + 4 * deviation, 1),
             Contains("the loss") && Contains("4.0 standard deviations") && Contains("last 4"));
  // Skipped updates are not in the window; the next one drops the oldest.
  CHECK_FALSE(skips(guard, 2 + 2.99 * deviation, 1));
  window = {2.25, 1.75, 2.0, 2 + 2.99 * deviation};
  const double higher = 2 + 3.01 * deviation;
  REQUIRE(z_score(window, higher) < 3);
  CHECK_FALSE(skips(guard, higher, 1));
  // A fall is no spike.
  CHECK_FALSE(skips(guard, -50, 1));
}

TEST_CASE("norms have a limit of their own", "[guards]") {
  SpikeGuard guard({.loss = 0, .gradient_norm = 2, .window = 2});
  CHECK_FALSE(skips(guard, 1, 5));
  CHECK_FALSE(skips(guard, 1, 7));
  CHECK_FALSE(skips(guard, 1000, 7.99));
  CHECK(skips(guard, 1, 9.6));
  CHECK_THAT(guard.reason_to_skip(1, 100), Contains("the gradient norm 100 is"));
}

TEST_CASE("what is not finite is always skipped, and equal numbers never are", "[guards]") {
  SpikeGuard guard({.loss = 1e300, .gradient_norm = 1e300, .window = 3});
  for (const double loss : {double(NAN), infinity, -infinity})
    CHECK(skips(guard, loss, 1));
  for (int i = 0; i < 5; ++i)
    CHECK_FALSE(skips(guard, 0.5, 0.5));
  for (const double loss : {double(NAN), infinity, -infinity})
    CHECK(skips(guard, loss, 0.5));
  // If the window has no deviation, every number above it is infinitely far from it.
  CHECK(skips(guard, 0.6, 0.5));
  CHECK(skips(guard, 0.5, infinity));
  CHECK(skips(guard, 0.5, NAN));
  CHECK_FALSE(SpikeGuard({}).active());
}

TEST_CASE("what a guard knows survives as JSON text, to the bit", "[guards]") {
  const SpikeGuard::Options options{.loss = 2, .gradient_norm = 2, .window = 8};
  SpikeGuard guard(options);
  guard.skip_batches(3);
  guard.skip_batches(4);
  for (const double value : random_values(11, 1))
    guard.keep(value, value / 3);
  SpikeGuard again(options);
  again.restore(Json::parse(guard.state().dump()));
  CHECK(again.state() == guard.state());
  CHECK(again.skipped_batches() == 7);
  for (const double loss : random_values(50, 2, 3))
    CHECK(again.reason_to_skip(loss, loss / 2) == guard.reason_to_skip(loss, loss / 2));
  // A shorter window takes the newest.
  SpikeGuard shorter({.loss = 2, .gradient_norm = 2, .window = 2});
  shorter.restore(guard.state());
  const Json all = guard.state().at("loss");
  CHECK(shorter.state().at("loss") == Json({all[6], all[7]}));
  // A checkpoint without a guard's state begins a new one.
  again.restore(Json());
  CHECK(again.skipped_batches() == 0);
  CHECK(again.state().at("loss").empty());
  CHECK(SpikeGuard({}).state().is_null());
  CHECK_THROWS_AS(again.restore(Json{{"loss", 3}}), Json::exception);
}

TEST_CASE("a spike changes nothing, on one rank and on many alike", "[guards][threads]") {
  const ThreadCount one(1);
  std::vector<TrainingTask> tasks(6, small_task());
  for (TrainingTask& task : tasks)
    task.batch_size = 4;
  tasks[1].dp = 2;
  tasks[2].dp = 2;
  tasks[2].zero = 1;
  tasks[3].pp = 2;
  tasks[4].tp = 2;
  tasks[5].dp = 2;
  tasks[5].pp = 2;
  for (const TrainingTask& task : tasks)
    skip_spike(task, task.resident(), DeviceKind::cpu);
}

TEST_CASE("a spike changes nothing of state that rests on the host", "[guards]") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TrainingTask task = small_task(dtype);
    const StateLayout layout = dtype == DType::bf16 ? StateLayout::split : StateLayout::fp32;
    for (const std::int64_t speculative : {0, 1})
      if (in_form(2, {dtype == DType::f32, speculative}))
        skip_spike(task, offloaded(task.resident(layout), 1, 3000, 2, 1, speculative),
                   DeviceKind::cuda);
  }
}

TEST_CASE("to the loss scale a spike is a good update", "[guards]") {
  const SpikedRun spiked{.task = small_task(DType::f16)};
  TrainingRun run(spiked.task, spiked.task.resident(), make_cpu_device(64 << 20));
  spiked.guard(run);
  run.training().trainer.scaler() = LossScaler({.scale = 4, .good_updates = 10});
  while (run.step_number() < 9) {
    const bool spike = run.step_number() == spiked.spike;
    CHECK(spiked.step(run).applied != spike);
  }
  CHECK(run.training().trainer.scaler().scale() == 4);
  CHECK(run.training().trainer.scaler().state().good_updates == 19);
}

TEST_CASE("a guard that skips nothing gives the bits of a run without one", "[guards]") {
  const TrainingTask task = small_task();
  TrainingRun without(task, task.resident(), make_cpu_device(64 << 20));
  const RunBits expected = without.train(8);
  TrainingRun with(task, task.resident(), make_cpu_device(64 << 20));
  with.training().trainer.spikes() = SpikeGuard({.loss = 1e6, .gradient_norm = 1e6, .window = 2});
  CHECK(first_difference(with.train(8), expected) == "");
}

TEST_CASE("a resumed run skips the same spikes", "[guards]") {
  const SpikedRun spiked{.task = small_task()};
  const TrainingTask& task = spiked.task;
  const auto open = [&] {
    auto run = std::make_unique<TrainingRun>(task, task.resident(), make_cpu_device(64 << 20));
    spiked.guard(*run);
    return run;
  };
  const TempDir dir;
  const Json identity{{"seed", 5}};
  const auto whole = open();
  std::filesystem::path saved;
  for (int i = 0; i < 12; ++i) {
    if (i == 6) saved = save_checkpoint(dir.path(), 6, identity, whole->training().checkpoint(), 5);
    spiked.step(*whole);
  }
  CHECK_FALSE(whole->steps()[7].applied);
  const auto resumed = open();
  resumed->continue_from(
      load_checkpoint(saved, read_manifest(saved), identity, resumed->training().checkpoint()));
  while (resumed->step_number() < 12)
    spiked.step(*resumed);
  RunBits all = whole->bits(), rest = resumed->bits();
  all.steps.erase(all.steps.begin(), all.steps.begin() + 6);
  CHECK(first_difference(rest, all) == "");
  CHECK(resumed->training().trainer.spikes().state() == whole->training().trainer.spikes().state());
}

TEST_CASE("the loss scale follows its script, through a resume, the same on all ranks",
          "[guards][threads]") {
  const ThreadCount one(1);
  // Overflows in these steps; every fourth good one in a row doubles the scale.
  const std::string script = "ggggxgggxxgggggggggx";
  const std::vector<double> scales{64, 64, 64, 64, 128, 64, 64, 64, 64, 32,
                                   16, 16, 16, 16, 32,  32, 32, 32, 64, 64};
  TrainingTask task = small_task(DType::f16);
  task.dp = 2;
  const TempDir dir;
  std::mutex mutex;
  on_mesh(task, task.resident(), DeviceKind::cpu, [&](const Ranks& ranks, const DevicePtr& device) {
    const auto train = [&](TrainingRun& run, std::int64_t last) {
      while (run.step_number() < last) {
        const auto step = static_cast<std::size_t>(run.step_number());
        LossScaler& scaler = run.training().trainer.scaler();
        // Four good updates stand for the 2000 of the rule.
        LossScaler::State state = scaler.state();
        if (state.good_updates < 1996) state.good_updates += 1996;
        const double scale = state.scale;
        const bool overflows = script[step] == 'x';
        scaler = LossScaler(state);
        // Spoils the weights on one rank only.
        std::vector<Change> spoilt;
        if (overflows && ranks.rank() == 1)
          spoilt = {{"h.0.mlp.c_fc.bias", 0, 6e4F}, {"h.0.mlp.c_proj.weight", 0, 6e4F}};
        const auto good = change_weights(run, spoilt);
        const RunBits before = bits_by_name(run);
        const TrainStep& result = run.step();
        RunBits after = bits_by_name(run);
        after.steps = before.steps;
        change_weights(run, good);
        const std::lock_guard lock(mutex);
        CAPTURE(step, ranks.rank());
        CHECK(scale == scales[step]);
        CHECK(result.loss_scale == scales[step]);
        CHECK(result.applied != overflows);
        CHECK((first_difference(before, after) == "") == overflows);
      }
    };
    TrainingRun run(task, task.resident(), device, {}, ranks);
    run.training().trainer.scaler() = LossScaler({.scale = 64});
    train(run, 12);
    const Json identity{{"seed", 5}};
    const auto saved = save_checkpoint(dir.path(), 12, identity, run.training().checkpoint(), 5);
    train(run, 14);
    run.continue_from(
        load_checkpoint(saved, read_manifest(saved), identity, run.training().checkpoint()));
    train(run, static_cast<std::int64_t>(script.size()));
    const std::lock_guard lock(mutex);
    CHECK(run.training().trainer.scaler().scale() == 32);
    CHECK(run.training().optimizer->updates() == 16);
  });
}

TEST_CASE("a resumed run leaves out the batches that it is told to, and keeps to that") {
  const TempDir dir;
  write_tokens(dir.path() / "t.bin", 900, 64);
  const auto train = [&](const std::string& output, int steps, const Arguments& more) {
    Arguments flags{"--n-layer",    "1",
                    "--n-head",     "2",
                    "--n-embd",     "16",
                    "--context",    "16",
                    "--vocab-size", "64",
                    "--batch-size", "2",
                    "--lr",         "0",
                    "--data",       (dir.path() / "t.bin").string(),
                    "--output",     (dir.path() / output).string(),
                    "--steps",      std::to_string(steps)};
    flags.insert(flags.end(), more.begin(), more.end());
    return run_program("train_gpt2", flags);
  };
  const auto events = [&](const std::string& output, const std::string& kind) {
    std::vector<Json> list;
    std::istringstream log(read_file(dir.path() / output / "log.jsonl"));
    for (std::string line; std::getline(log, line);)
      if (Json event = Json::parse(line); event.at("event") == kind) list.push_back(event);
    return list;
  };
  REQUIRE(train("whole", 12, {}).exit_code == 0);
  REQUIRE(train("parts", 3, {}).exit_code == 0);
  REQUIRE(train("parts", 5, {"--skip-batches", "2"}).exit_code == 0);
  REQUIRE(train("parts", 7, {}).exit_code == 0);
  REQUIRE(train("parts", 8, {"--skip-batches", "1"}).exit_code == 0);
  // The learning rate is 0, so that the loss identifies its batch.
  std::vector<Json> expected, losses;
  for (const Json& step : events("whole", "train"))
    expected.push_back(step.at("loss"));
  for (const Json& step : events("parts", "train"))
    losses.push_back(step.at("loss"));
  const auto at = [&](std::size_t i) { return expected.at(i); };
  CHECK(losses == std::vector<Json>{at(0), at(1), at(2), at(5), at(6), at(7), at(8), at(10)});
  std::vector<Json> skipped;
  for (const Json& start : events("parts", "start"))
    skipped.push_back(start.at("skipped_batches"));
  CHECK(skipped == std::vector<Json>{0, 2, 2, 3});
  const ProgramResult refused = train("nothing", 3, {"--skip-batches", "2"});
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, Contains("--skip-batches"));
}

TEST_CASE("a program skips a spike, says so and counts it") {
  const TempDir dir;
  write_tokens(dir.path() / "t.bin", 900, 64);
  const Arguments flags = words(
      "--n-layer 1 --n-head 2 --n-embd 16 --context 16 --vocab-size 64 --batch-size 2 --steps 140 "
      "--skip-spikes 0.001 --max-bad-steps 100 "
      "--data " +
      (dir.path() / "t.bin").string() + " --output " + (dir.path() / "out").string());
  const std::string out = run_well("train_gpt2", flags);
  CHECK_THAT(out, Contains("standard deviations above") && Contains("skipped      "));
  std::int64_t skipped = 0;
  std::istringstream log(read_file(dir.path() / "out" / "log.jsonl"));
  for (std::string line; std::getline(log, line);) {
    const Json event = Json::parse(line);
    if (event.at("event") == "train" && !event.at("applied")) ++skipped;
    if (event.at("event") == "end") CHECK(event.at("skipped_spikes") == skipped);
  }
  CHECK(skipped > 0);
}

}  // namespace sluice::test::spikes_test
