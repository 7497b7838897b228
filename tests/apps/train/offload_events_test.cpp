#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/checkpoint/checkpoint_saver.h"
#include "models/decoder/generate.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gpu/unpinned_runtime.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/training.h"

// Events between the updates of a run with offloaded state: gradients that are not finite,
// validation and samples while updates are still in flight, checkpoints, memory that cannot be
// pinned.

namespace sluice::test::offload_events_test {
namespace {

/// The short form has the CPU's share of one block, of two and of none, below updates that begin
/// under the backward pass and without them.
const std::uint64_t seeds = by_form(3, 5);

/// Offloads the state of two of three blocks. The CPU updates neither, one or both of these in host
/// memory; in half of the cases all others are updated during the backward pass.
MemoryChoice streaming(const TrainingTask& task, StateLayout layout, std::uint64_t seed = 0) {
  const auto by_cpu = static_cast<std::int64_t>(seed % 3);
  return offloaded(task.resident(layout), 1, 3000, 2, by_cpu, seed % 4 < 2 ? 2 - by_cpu : 0);
}

/// Returns what a run holds, without what its steps have returned.
RunBits held(TrainingRun& run) {
  RunBits bits = run.bits();
  bits.steps = {{static_cast<double>(run.training().optimizer->updates())}};
  return bits;
}

/// Enough for a batch.
constexpr std::size_t pinned_limit = 4096;

}  // namespace

TEST_CASE("a gradient that is not finite changes nothing, and training goes on", "[offload]") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const StateLayout layout = dtype == DType::bf16 ? StateLayout::split : StateLayout::fp32;
    const TrainingTask task{.dtype = dtype, .seq_len = 8, .grad_clip = 1.5};
    const auto train = [&](const MemoryChoice& choice, std::uint64_t seed) {
      TrainingRun run(task, choice, open_gpu(seed));
      run.train(2);
      // The logits of token 0 leave the range of every dtype.
      const auto spoil = [&](float gain, float weight) {
        run.set_weight("ln_f.weight", 7, gain);
        run.set_weight("wte.weight", 7, weight);
      };
      spoil(3e38F, 100);
      const RunBits before = held(run);
      for (int bad = 0; bad < 2; ++bad) {
        CHECK_FALSE(run.step().applied);
        CHECK_FALSE(std::isfinite(run.steps().back().gradient_norm));
        CHECK(first_difference(held(run), before) == "");
      }
      CHECK(run.training().optimizer->updates() == 2);
      spoil(1, 0.02F);
      run.step();
      CHECK(run.steps().back().applied);
      return run.train(2);
    };
    const RunBits expected = train(task.resident(layout), 1);
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      if (!in_form(2, {dtype == DType::f32, static_cast<std::int64_t>(seed)})) continue;
      CAPTURE(name_of(dtype), seed);
      CHECK(first_difference(train(streaming(task, layout, seed), seed), expected) == "");
    }
  }
}

TEST_CASE("an overflow while the last update is still under way loses neither", "[offload]") {
  if (!have_gpu()) return;
  const TrainingTask task{.dtype = DType::f16, .seq_len = 8, .grad_clip = 1.5};
  const auto train = [&](const MemoryChoice& choice, std::uint64_t seed) {
    TrainingRun run(task, choice, open_gpu(seed));
    for (int step = 0; step < 8; ++step) {
      // Nobody waits here: the update before is launched by the forward pass that then overflows.
      const bool overflows = step == 3 || step == 4 || step == 6;
      run.training().trainer.scaler() = LossScaler({.scale = overflows ? 1e30 : 1024});
      CHECK(run.step().applied == !overflows);
    }
    CHECK(run.training().optimizer->updates() == 5);
    return run.bits();
  };
  const RunBits expected = train(task.resident(), 1);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    CHECK(first_difference(train(streaming(task, StateLayout::fp32, seed), seed), expected) == "");
  }
}

TEST_CASE("validation and samples see every update, also those still under way", "[offload]") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TrainingTask task{.dtype = dtype, .seq_len = 8, .grad_clip = 1.5};
    const auto ids = random_ids(200, 64, 9);
    const auto tokens = tokens_in_memory(ids);
    const auto train = [&](const MemoryChoice& choice, std::uint64_t seed) {
      TrainingRun run(task, choice, open_gpu(seed));
      std::vector<double> seen;
      for (int step = 0; step < 6; ++step) {
        run.step();
        if (step % 3 != 1) seen.push_back(run.training().trainer.evaluate(*tokens, 2));
        if (step % 3 == 0) continue;
        const auto made = generate(run.training().model, run.device(), std::vector{3, 1, 4},
                                   {.max_tokens = 16, .sampling = {.seed = 77}});
        seen.insert(seen.end(), made.begin(), made.end());
      }
      RunBits bits = run.bits();
      bits.steps.push_back(std::move(seen));
      return bits;
    };
    const RunBits expected = train(task.resident(), 1);
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      if (!in_form(2, {dtype == DType::f32, static_cast<std::int64_t>(seed)})) continue;
      CAPTURE(name_of(dtype), seed);
      CHECK(first_difference(train(streaming(task, StateLayout::fp32, seed), seed), expected) ==
            "");
    }
  }
}

TEST_CASE("a checkpoint of any lossless way to keep state continues in any other", "[offload]") {
  for (const DeviceKind kind : device_kinds()) {
    const auto device = [&](std::uint64_t seed) {
      return kind == DeviceKind::cuda ? open_gpu(seed) : make_cpu_device(64 << 20);
    };
    const TrainingTask task{.dtype = DType::bf16, .seq_len = 8, .grad_clip = 1.5};
    const std::vector<MemoryChoice> all{
        task.resident(StateLayout::fp32),
        task.resident(StateLayout::split),
        streaming(task, StateLayout::fp32),
        streaming(task, StateLayout::split),
        offloaded(task.resident(StateLayout::split), 0, std::int64_t{4} << 20, 4),
        streaming(task, StateLayout::fp32, 1),
        streaming(task, StateLayout::split, 2)};
    // In the short form the slow emulated GPU goes from one to the next of three.
    const bool few = kind == DeviceKind::cuda && !long_form();
    const auto choices = few ? std::vector{all[0], all[3], all[5]} : all;
    TrainingRun whole(task, choices[0], device(1));
    const RunBits expected = whole.train(6);
    const nlohmann::json identity{{"seed", 5}};
    std::uint64_t seed = 1;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const MemoryChoice& first = choices[i];
      const TempDir dir;
      TrainingRun before(task, first, device(++seed));
      for (int step = 0; step < 3; ++step)
        before.step();
      // Its state is still on its way home.
      const auto save = [&] {
        return save_checkpoint(dir.path(), before.step_number(), identity,
                               before.training().checkpoint(), 5);
      };
      const auto saved = save();
      for (std::size_t j = 0; j < choices.size(); ++j) {
        if (few && j != (i + 1) % choices.size()) continue;
        if (!few && !in_form(2, {static_cast<std::int64_t>(i + j)})) continue;
        const MemoryChoice& second = choices[j];
        CAPTURE(static_cast<int>(kind), seed, name_of(first.layout), first.offloads_state(),
                name_of(second.layout), second.offloads_state(), first.count(Residency::cpu),
                second.count(Residency::cpu));
        TrainingRun after(task, second, device(seed));
        // Earlier steps must leave no trace, not even in what was fetched for the next step.
        after.train(1);
        after.training().optimizer->prefetch();
        after.continue_from(
            load_checkpoint(saved, read_manifest(saved), identity, after.training().checkpoint()));
        CHECK(after.step_number() == 3);
        RunBits bits = after.train(3);
        CHECK(bits.steps.size() == 5);
        bits.steps.erase(bits.steps.begin());
        bits.steps.insert(bits.steps.begin(), expected.steps.begin(), expected.steps.begin() + 3);
        CHECK(first_difference(bits, expected) == "");
      }
      // Saving was no end either.
      CHECK(first_difference(before.train(3), expected) == "");
    }
  }
}

TEST_CASE("state in memory that the system does not pin gives the same bits", "[offload]") {
  if (!have_gpu()) return;
  const TrainingTask task{.dtype = DType::bf16, .seq_len = 8, .grad_clip = 1.5};
  TrainingRun reference(task, task.resident(StateLayout::split), open_gpu(1));
  const RunBits expected = reference.train(5);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    const auto device = std::make_shared<DeviceContext>(
        std::make_unique<UnpinnedRuntime>(seed, pinned_limit), std::size_t{64} << 20);
    TrainingRun run(task, streaming(task, StateLayout::split, seed), device);
    CHECK(run.host().unpinned);
    CHECK(first_difference(run.train(5), expected) == "");
  }
}

TEST_CASE("memory that the system pins in pieces, or some pieces of, gives the same bits",
          "[offload]") {
  if (!have_gpu()) return;
  const TrainingTask task{.dtype = DType::bf16, .seq_len = 8, .grad_clip = 1.5};
  TrainingRun reference(task, task.resident(StateLayout::split), open_gpu(1));
  const RunBits expected = reference.train(5);
  constexpr std::size_t piece = 4096, pieces = 600, bytes = piece * pieces - 1000;
  for (const bool all : {true, false})
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      CAPTURE(all, seed);
      std::string pinned(pieces, '1');
      for (std::size_t i = seed % 7; i < pieces && !all; i += 7)
        pinned[i] = '0';
      const auto device = std::make_shared<DeviceContext>(
          std::make_unique<UnpinnedRuntime>(seed, pinned_limit, pinned), std::size_t{64} << 20);
      const HostMemory host = make_host_memory(device, bytes, bytes, piece);
      CHECK(host.unpinned == !all);
      CHECK((host.pinned_bytes == bytes) == all);
      CHECK(host.pinned_bytes > bytes / 2);
      TrainingRun run(task, streaming(task, StateLayout::split, seed), device, host);
      CHECK(first_difference(run.train(5), expected) == "");
    }
}

}  // namespace sluice::test::offload_events_test
