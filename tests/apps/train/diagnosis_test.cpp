#include <cmath>
#include <mutex>
#include <set>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "apps/train/diagnosis.h"
#include "apps/train_gpt2/bad_steps.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gradcheck.h"
#include "tests/support/program.h"
#include "tests/support/spoil.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/pipelines.h"

// Numbers that go wrong on purpose: what is said of them, and that nothing comes of them.

namespace sluice::test::diagnosis_test {
namespace {

/// Changes that make a number overflow at one known place, and how that place is called.
struct Overflow {
  const char* place;
  std::vector<Change> changes;
};

constexpr std::int64_t width = 64;

/// An element of every token's embedding, and of the first position.
std::vector<Change> large_embeddings() {
  std::vector<Change> changes{{"wpe.weight", 7, 3e38F}};
  for (std::int64_t token = 0; token < 64; ++token)
    changes.push_back({"wte.weight", token * width + 7, 3e38F});
  return changes;
}

/// Elements 0 and `width` of c_attn are query and key of the same head.
const std::vector<Overflow> overflows{
    {"the output of embedding in wte (forward)", large_embeddings()},
    {"the output of layernorm in h.1.ln_1 (forward)",
     {{"h.1.ln_1.weight", 0, 3e38F}, {"h.1.ln_1.bias", 0, 3e38F}}},
    {"the output of linear in h.2.attn.c_attn (forward)",
     {{"h.2.ln_1.bias", 0, 1e20F}, {"h.2.attn.c_attn.weight", 0, 1e20F}}},
    {"the output of attention in h.1 (forward)",
     {{"h.1.attn.c_attn.bias", 0, 1e20F}, {"h.1.attn.c_attn.bias", width, 1e20F}}},
    {"the output of gelu_mlp in h.0.mlp (forward)",
     {{"h.0.mlp.c_fc.bias", 0, 1e20F}, {"h.0.mlp.c_proj.weight", 0, 1e20F}}},
    {"the output of linear_cross_entropy in wte (forward)",
     {{"ln_f.bias", 7, 1e30F}, {"wte.weight", 7, 1e15F}}},
    {"weight h.1.mlp.c_fc.weight before the step", {{"h.1.mlp.c_fc.weight", 5, INFINITY}}},
    {"weight ln_f.bias before the step", {{"ln_f.bias", 5, NAN}}},
};

TrainingTask small_task(DType dtype = DType::f32) {
  return {.dtype = dtype, .seq_len = 8, .grad_clip = 1.5, .dropout = 0.1};
}

MemoryChoice recomputing(const TrainingTask& task, Recompute recompute) {
  MemoryChoice choice = task.resident();
  choice.placement.set_recompute(recompute);
  return choice;
}

/// Everything but what the steps returned, of what a rank has.
RunBits held(TrainingRun& run) {
  RunBits bits = bits_by_name(run);
  bits.steps = {{static_cast<double>(run.training().optimizer->updates()),
                 run.training().trainer.scaler().scale()}};
  return bits;
}

/// The reasons that the ranks gave for a step that they did with `changes` made by some of them.
/// That step must change nothing, need no more memory, and leave no trace in the steps after it.
std::set<std::string> reasons_of(const TrainingTask& task, const MemoryChoice& choice,
                                 const std::vector<Change>& changes,
                                 const std::function<bool(int)>& changes_here = {},
                                 DeviceKind kind = DeviceKind::cpu) {
  std::set<std::string> reasons;
  std::mutex mutex;
  on_mesh(task, choice, kind, [&](const Ranks& ranks, const DevicePtr& device) {
    const auto run_all = [&](bool with_bad_step) {
      TrainingRun run(task, choice, device, {}, ranks);
      for (int i = 0; i < 3; ++i)
        run.step();
      const std::size_t peak = device->arena().peak();
      if (with_bad_step) {
        const bool here = !changes_here || changes_here(ranks.rank());
        const auto saved = change_weights(run, here ? changes : std::vector<Change>());
        const RunBits before = held(run);
        const TrainStep& bad = run.step();
        const std::string difference = first_difference(held(run), before);
        change_weights(run, saved);
        const std::lock_guard lock(mutex);
        CHECK_FALSE(bad.applied);
        CHECK(difference == "");
        CHECK(device->arena().peak() == peak);
        reasons.insert(bad.reason);
      }
      run.continue_from(4);
      run.step();
      run.step();
      return held(run);
    };
    const RunBits with = run_all(true);
    const RunBits without = run_all(false);
    const std::lock_guard lock(mutex);
    CHECK(first_difference(with, without) == "");
  });
  return reasons;
}

using Reasons = std::set<std::string>;

}  // namespace

TEST_CASE("the first number that is not finite is named", "[guards]") {
  for (const Recompute recompute : {Recompute::none, Recompute::gelu_ln, Recompute::block})
    for (const Overflow& overflow : overflows) {
      const TrainingTask task = small_task();
      CAPTURE(static_cast<int>(recompute), overflow.place);
      CHECK(reasons_of(task, recomputing(task, recompute), overflow.changes) ==
            Reasons{std::string("first seen in ") + overflow.place});
    }
}

TEST_CASE("a backward pass that overflows after a finite forward pass is named", "[guards]") {
  // Large gradients meet large activations that no weight lets into the stream.
  const TrainingTask task = small_task();
  std::vector<Change> changes{{"h.1.mlp.c_fc.bias", 0, 1e10F}};
  for (std::int64_t column = 0; column < width; ++column) {
    changes.push_back({"h.1.mlp.c_proj.weight", column, 0});
    changes.push_back({"ln_f.weight", column, 1e32F});
  }
  for (const Recompute recompute : {Recompute::none, Recompute::block})
    CHECK(reasons_of(task, recomputing(task, recompute), changes) ==
          Reasons{"first seen in the gradient of weight h.1.mlp.c_proj.weight, from gelu_mlp "
                  "(backward)"});
  // If these changes are left out only the squares overflow.
  CHECK(reasons_of(task, task.resident(), {{"ln_f.weight", 0, 1e30F}}) ==
        Reasons{"every tensor is when the step is computed again: sums over ranks or of squares "
                "overflowed, or the fault has passed"});
}

TEST_CASE("of gradients that are not finite that of the highest block is the first", "[guards]") {
  const TrainingTask task = small_task();
  TrainingRun run(task, task.resident(), make_cpu_device(64 << 20));
  Diagnosis diagnosis(run.training().space, run.training().model.names());
  const Tensor ids = Tensor::from_tokens(run.device(), {1, 8}, std::vector<std::int32_t>(8, 3));
  Tensor loss;
  {
    const Observed observed(diagnosis);
    loss = run.training().model.loss(ids, ids, {.scale = 0.125}).loss;
  }
  std::vector<const Node*> blocks;  // from the highest to the lowest
  for (const Node* node = loss.impl()->producer.get(); node != nullptr;) {
    if (node->name() == "gelu_mlp") blocks.push_back(node);
    const auto& inputs = node->inputs();
    const auto before = std::ranges::find_if(
        inputs.rbegin(), inputs.rend(), [](const Edge& edge) { return edge.producer != nullptr; });
    node = before == inputs.rend() ? nullptr : before->producer.get();
  }
  REQUIRE(blocks.size() == 3);
  const Tensor bad = Tensor::from_host(run.device(), {1}, DType::f32, Values{NAN});
  for (const std::size_t block : {2u, 0u, 1u})
    diagnosis.handed_over(*blocks[block], blocks[block]->inputs()[0], bad);
  CHECK(diagnosis.first(*run.training().ranks.control).text ==
        std::string("the input's gradient of gelu_mlp in h.2.mlp (backward)"));
}

TEST_CASE("ranks agree on what was first, and on whose it was", "[guards][threads]") {
  const ThreadCount one(1);
  const std::vector<Change> norm{{"h.2.ln_1.weight", 0, 3e38F}, {"h.2.ln_1.bias", 0, 3e38F}};
  const std::string seen = "first seen in the output of layernorm in h.2.ln_1 (forward)";
  TrainingTask task = small_task();
  task.batch_size = 4;
  const auto on_last = [](int rank) { return rank == 1; };
  for (const std::int64_t zero : {0, 1}) {
    TrainingTask two = task;
    two.dp = 2;
    two.zero = zero;
    CAPTURE(zero);
    CHECK(reasons_of(two, two.resident(), norm) == Reasons{seen + " of rank 0"});
    // Sharded, the skipped update has already replaced what a rank has of others' weights.
    if (zero == 1) continue;
    CHECK(reasons_of(two, two.resident(), norm, on_last) == Reasons{seen + " of rank 1"});
    CHECK(reasons_of(two, two.resident(), {{"h.0.attn.c_proj.bias", 3, NAN}}, on_last) ==
          Reasons{"first seen in weight h.0.attn.c_proj.bias of rank 1 before the step"});
  }
  for (const std::string stash : {"graph", "input"}) {
    TrainingTask stages = task;
    stages.pp = 2;
    stages.stash = stash;
    CAPTURE(stash);
    // The second stage has the last block alone.
    CHECK(reasons_of(stages, stages.resident(), norm) == Reasons{seen + " of rank 1"});
    CHECK(reasons_of(stages, stages.resident(),
                     {{"h.0.ln_2.weight", 0, 3e38F}, {"h.0.ln_2.bias", 0, 3e38F}}) ==
          Reasons{"first seen in the output of layernorm in h.0.ln_2 (forward) of rank 0"});
  }
  for (const bool sequence_parallel : {false, true}) {
    TrainingTask shards = task;
    shards.tp = 2;
    shards.sequence_parallel = sequence_parallel;
    CAPTURE(sequence_parallel);
    CHECK(reasons_of(shards, shards.resident(), norm) == Reasons{seen + " of rank 0"});
  }
}

TEST_CASE("state on the host is left as it is by a step that is computed twice", "[guards]") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TrainingTask task = small_task(dtype);
    const MemoryChoice choice =
        offloaded(task.resident(dtype == DType::bf16 ? StateLayout::split : StateLayout::fp32), 1,
                  3000, 2, 1, 1);
    std::int64_t place = dtype == DType::bf16;
    for (const Overflow& overflow : overflows) {
      if (std::string(overflow.place).find("layernorm") == std::string::npos &&
          std::string(overflow.place).find("weight") == std::string::npos)
        continue;
      if (!in_form(2, {place++})) continue;
      CAPTURE(overflow.place);
      CHECK(reasons_of(task, choice, overflow.changes, {}, DeviceKind::cuda) ==
            Reasons{std::string("first seen in ") + overflow.place});
    }
  }
}

TEST_CASE("an overflow that the loss scale explains is not looked into", "[guards]") {
  const TrainingTask task = small_task(DType::f16);
  TrainingRun run(task, task.resident(), make_cpu_device(64 << 20));
  run.training().trainer.scaler() = LossScaler({.scale = 1e30});
  CHECK_FALSE(run.step().applied);
  CHECK(run.steps().back().reason == "");
  // Weights are looked at all the same.
  run.set_weight("h.0.ln_1.bias", 1, INFINITY);
  CHECK_FALSE(run.step().applied);
  CHECK(run.steps().back().reason == "first seen in weight h.0.ln_1.bias before the step");
  CHECK_FALSE(run.steps().back().weights_finite);
}

TEST_CASE("every kind of float is looked at to its last element", "[guards]") {
  const auto cpu = make_cpu_device(16 << 20);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const double bad : {double(INFINITY), -double(INFINITY), double(NAN)}) {
      Values values((1 << 20) + 3, -60000);
      CHECK(all_finite(
          Tensor::from_host(cpu, {static_cast<std::int64_t>(values.size())}, dtype, values)));
      values.back() = bad;
      CHECK_FALSE(all_finite(
          Tensor::from_host(cpu, {static_cast<std::int64_t>(values.size())}, dtype, values)));
    }
}

TEST_CASE("a run whose weights are not finite saves nothing and ends with exit code 3",
          "[guards]") {
  const TrainingTask task = small_task();
  TrainingRun run(task, task.resident(), make_cpu_device(64 << 20));
  const auto save = [&] {
    require_finite_weights(run.training().space, run.training().model.names(),
                           *run.training().ranks.control, 7);
  };
  save();
  run.set_weight("h.1.ln_2.bias", 63, NAN);
  CHECK_THAT(error_message(save), Contains("nothing was saved at step 7") &&
                                      Contains("weight h.1.ln_2.bias is not finite"));
  // Tests the program: the first update takes the weights beyond the range of fp32.
  const TempDir dir;
  const ProgramResult result = run_program(
      "train_gpt2",
      words("--n-layer 1 --n-head 2 --n-embd 16 --context 16 --batch-size 2 --steps 9 --lr 1e39 "
            "--warmup-steps 0 --save-every 1 --sample-tokens 0 --output " +
            (dir.path() / "out").string()));
  CHECK(result.exit_code == 3);
  CHECK(count_lines(result.err) == 1);
  CHECK_THAT(result.err, Contains("nothing was saved at step 1: weight wte.weight is not finite"));
  CHECK(list_checkpoints(dir.path() / "out" / "checkpoints").empty());
}

TEST_CASE("so many skipped updates in a row end a run, whatever they were skipped for",
          "[guards]") {
  BadSteps bad(3);
  const TrainStep good{};
  const TrainStep not_finite{.gradient_norm = NAN, .applied = false, .reason = "seen there"};
  const TrainStep spike{.gradient_norm = 9, .applied = false, .reason = "a spike"};
  const TrainStep overflow{.gradient_norm = INFINITY, .loss_scale = 2, .applied = false};
  const auto record = [&](const TrainStep& step) {
    const std::string said = bad.record(5, step);
    bad.require_good(5);
    return said;
  };
  CHECK(record(not_finite) ==
        "step 5: the gradient is not finite; seen there; the update was skipped (1 in a row)");
  CHECK(record(spike) == "step 5: a spike; the update was skipped (2 in a row)");
  CHECK_THAT(record(overflow), Contains("loss scale of 2"));
  CHECK(record(good) == "");
  record(spike);
  record(not_finite);
  CHECK(bad.line() == "skipped      5 updates: 3 not finite, 2 spikes\n");
  try {
    record(not_finite);
    FAIL("it went on");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::numerical);
    CHECK_THAT(error.what(), Contains("3 updates in a row") &&
                                 Contains("the gradient is not finite; seen there"));
  }
}

TEST_CASE("a loss that no cross-entropy is ends a run at once, with an applied update too",
          "[guards][files]") {
  for (const double loss : {0.0, 3.5, 1e30, -1e-6}) {
    BadSteps bad(3);
    CHECK(bad.record(7, {.loss = loss}) == "");
    CHECK_NOTHROW(bad.require_good(7));
  }
  for (const double loss : {-0.5, -277.0, double(NAN), double(INFINITY), -double(INFINITY)}) {
    BadSteps bad(3);
    CHECK_THAT(bad.record(7, {.loss = loss}), Contains("the loss of step 7 is"));
    try {
      bad.require_good(7);
      FAIL("it went on");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::numerical);
      CHECK_THAT(error.what(), Contains("step 7") && Contains("nothing was saved"));
    }
  }
}

}  // namespace sluice::test::diagnosis_test
