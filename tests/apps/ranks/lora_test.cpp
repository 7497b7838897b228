#include "models/decoder/shard.h"
#include "models/lora/targets.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gradcheck.h"
#include "tests/support/training/one_step.h"
#include "tests/support/training/pipelines.h"

// Training of low-rank adapters, however ranks divide it and memory holds it.

namespace sluice::test::lora_ranks_test {
namespace {

TrainingTask task_for(const std::string& family, DType dtype) {
  TrainingTask task{.dtype = dtype, .batch_size = 4, .seq_len = 16};
  if (family != "gpt2") task.config = small_model(family.c_str(), 3);
  task.config.lora = {.rank = 3, .alpha = 6, .targets = lora_targets(task.config, "all")};
  return task;
}

Batch some_batch() {
  return {{.tokens = random_ids(4 * 16, 64, 1), .targets = random_ids(4 * 16, 64, 2)}, 0};
}

}  // namespace

TEST_CASE("adapters have the same loss and gradients in every layout", "[lora][ranks]") {
  const ThreadCount one(1);
  const StepLayout layouts[] = {{1, 1, 1, 2},
                                {1, 1, 1, 2, "", false, Recompute::block},
                                {1, 1, 1, 4, "", false, Recompute::gelu},
                                {1, 1, 1, 2, "", false, Recompute::gelu_ln},
                                {2, 1, 1, 1},
                                {1, 2, 1, 1},
                                {1, 2, 1, 2, "zb-h1"},
                                {1, 1, 2, 2},
                                {1, 1, 2, 1, "", false, Recompute::block},
                                {2, 1, 2, 1},
                                {1, 2, 2, 2},
                                {1, 1, 4, 2},
                                {1, 1, 1, 1, "layer-major"}};
  std::int64_t number = 0;
  for (const std::string family : {"gpt2", "tinyllama-1.1b", "gptj-6b", "pythia-160m"})
    for (const DType dtype : {DType::f64, DType::f32}) {
      const TrainingTask task = task_for(family, dtype);
      const OneStep expected = one_step(task, task.resident(), some_batch(), DeviceKind::cpu);
      CHECK(expected.gradients.size() == 24);
      for (const StepLayout& layout : layouts) {
        const bool gpu = dtype == DType::f32;
        // Four ranks share two heads of k and v; this GPT-2 has two heads in all.
        if (layout.tp == 4 && family == "gpt2") continue;
        if (gpu && (!have_gpu() || !in_form(5, {number++}))) continue;
        CAPTURE(family, name_of(dtype), layout.text());
        const OneStep actual =
            one_step(task, layout, some_batch(), gpu ? DeviceKind::cuda : DeviceKind::cpu);
        check_close(actual, expected, gpu ? 5e-5 : 1e-11);
      }
    }
}

TEST_CASE("beside a base of 8 bits adapters have the same gradients in every layout",
          "[lora][ranks]") {
  const ThreadCount one(1);
  const StepLayout layouts[] = {{1, 1, 1, 2, "", false, Recompute::block},
                                {1, 1, 1, 4, "", false, Recompute::gelu_ln},
                                {2, 1, 1, 1},
                                {1, 2, 1, 2, "zb-h1"},
                                {1, 1, 2, 2},
                                {1, 2, 2, 2},
                                {1, 1, 4, 2},
                                {1, 1, 1, 1, "layer-major"}};
  std::int64_t number = 0;
  for (const std::string family : {"gpt2", "tinyllama-1.1b", "gptj-6b", "pythia-160m"})
    for (const DType dtype : {DType::f64, DType::f32}) {
      TrainingTask task = task_for(family, dtype);
      // Heads of 32 columns, so that shards begin between blocks that share a scale.
      task.config.n_embd = 32 * task.config.n_head;
      task.config.n_inner = 256;
      const auto step = [&](const StepLayout& layout, DeviceKind kind) {
        return one_step(task, layout, some_batch(), kind);
      };
      const OneStep plain = step({1, 1, 1, 2}, DeviceKind::cpu);
      task.config.lora.int8_base = true;
      const OneStep expected = step({1, 1, 1, 2}, DeviceKind::cpu);
      if (dtype == DType::f64) CHECK(expected.loss != plain.loss);
      CHECK(expected.loss == Approx(plain.loss).epsilon(1e-3));
      for (const StepLayout& layout : layouts) {
        const bool gpu = dtype == DType::f32;
        if (layout.tp == 4 && family == "gpt2") continue;  // which has two heads here
        if (gpu && (!have_gpu() || !in_form(4, {number++}))) continue;
        CAPTURE(family, name_of(dtype), layout.text());
        REQUIRE(division_fault(task.config, static_cast<int>(layout.tp)) == "");
        check_close(step(layout, gpu ? DeviceKind::cuda : DeviceKind::cpu), expected,
                    gpu ? 5e-5 : 1e-11);
      }
    }
}

TEST_CASE("where adapters' state is and who updates it changes no bit", "[lora][ranks][threads]") {
  const ThreadCount one(1);
  TrainingTask task = task_for("gpt2", DType::bf16);
  task.config.lora.rank = 64;  // so that its matrices count as large
  task.config.lora.int8_base = GENERATE(false, true);
  CAPTURE(task.config.lora.int8_base);
  const MemoryChoice choice = task.resident(StateLayout::split, 2);
  const auto train = [&](const TrainingTask& how, DeviceKind kind) {
    RunBits first;
    std::mutex mutex;
    on_mesh(how, choice, kind, [&](const Ranks& ranks, const DevicePtr& device) {
      TrainingRun run(how, choice, device, {}, ranks);
      RunBits bits = run.train(4);
      run.training().require_equal_copies("at the end");
      const std::lock_guard lock(mutex);
      if (ranks.rank() == 0) first = std::move(bits);
    });
    return first;
  };
  TrainingTask two = task;
  two.dp = 2;
  const RunBits replicas = train(two, DeviceKind::cpu);
  for (const std::int64_t zero : {1, 2}) {
    CAPTURE(zero);
    two.zero = zero;
    CHECK(first_difference(replicas, train(two, DeviceKind::cpu)) == "");
  }
  if (!have_gpu()) return;
  const RunBits resident = TrainingRun(task, choice, open_gpu(1)).train(4);
  TrainingRun streaming(task, offloaded(choice, 1, 2000, 2, 1), open_gpu(2));
  CHECK(first_difference(resident, streaming.train(4)) == "");
  CHECK(streaming.training().optimizer->moved().to_device > 0);
  TrainingTask graph = task;
  graph.cuda_graph = true;
  TrainingRun repeated(graph, choice, open_gpu(3));
  CHECK(first_difference(resident, repeated.train(4)) == "");
}

TEST_CASE("the dropout of adapters is drawn once for each step and sequence", "[lora]") {
  const ThreadCount one(1);
  TrainingTask task = task_for("gpt2", DType::f64);
  const OneStep without = one_step(task, task.resident(), some_batch(), DeviceKind::cpu);
  task.config.lora.dropout = 0.3;
  const OneStep whole =
      one_step(task, task.resident(StateLayout::fp32, 4), some_batch(), DeviceKind::cpu);
  CHECK(std::abs(whole.loss - without.loss) > 1e-6);
  for (const StepLayout& layout :
       {StepLayout{1, 1, 1, 1}, StepLayout{2, 1, 1, 2},
        StepLayout{1, 1, 1, 2, "", false, Recompute::block}, StepLayout{1, 2, 1, 2}}) {
    CAPTURE(layout.text());
    check_close(one_step(task, layout, some_batch(), DeviceKind::cpu), whole, 1e-11);
  }
}

}  // namespace sluice::test::lora_ranks_test
