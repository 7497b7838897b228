#include "apps/train/pipeline.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <functional>
#include <mutex>

#include "apps/plan/memory_plan.h"
#include "engine/autograd.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gradcheck.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/pipelines.h"

// However a model is divided between the ranks of a pipeline: it trains as in one process, bit for
// bit. Ranks are threads here.

namespace sluice::test::pipeline_test {
namespace {

constexpr std::array pipelines{"1f1b", "gpipe", "interleaved", "zb-h1"};

TrainingTask task_for(std::int64_t layers, std::int64_t micro_batches) {
  return {
      .config = {.n_layer = layers, .n_head = 2, .n_embd = 32, .vocab_size = 80, .n_positions = 8},
      .batch_size = micro_batches,
      .seq_len = 8,
      .grad_clip = 0.5,
      .dropout = 0.1,
      .bucket_size = "4KiB",
      .pipeline = "1f1b"};
}

/// One process that goes through two tables of its own, by hand.
RunBits train_with_two_tables(const TrainingTask& task, std::int64_t steps) {
  const ThreadCount one(1);
  TrainingTask plain = task;
  plain.pipeline = "";
  TrainingRun run(plain, plain.resident(), make_cpu_device(memory_of_rank));
  Training& training = run.training();
  const auto setup = plain.setup(DeviceKind::cpu);
  const auto& table = *training.space.find("wte.weight");
  Tensor head = training.space.working().slice(table.offset, table.shape);
  head.set_requires_grad(true);
  training.model.set_head_table(head);
  std::vector<std::vector<double>> logged;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Batch batch = task.batch(step);
    training.space.forget_gradients();
    forget_gradient(head);
    double loss = 0;
    for (const double row : run.accumulate(batch, step, 1))
      loss += row;
    training.space.zero_unused_gradients();
    const auto first = table.tensor->grad().to_host(), second = head.grad().to_host();
    std::vector<float> sum(first.size());
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] = static_cast<float>(first[i]) + static_cast<float>(second[i]);
    table.tensor->grad().copy_bytes_from(std::as_bytes(std::span(sum)));
    const Tensor& factor = training.space.clip_gradients(task.grad_clip);
    training.optimizer->step(setup.schedule.at(step), factor);
    logged.push_back({loss, training.space.gradient_norm(), setup.schedule.at(step), 1, 1});
  }
  RunBits bits = bits_by_name(run);
  bits.steps = logged;
  return bits;
}

void recompute_blocks(MemoryChoice& choice) {
  choice.placement.set_recompute(Recompute::block);
}

}  // namespace

TEST_CASE("a pipeline of one rank adds the gradients of the table's two places in the end",
          "[ranks][pipeline][threads]") {
  for (const std::int64_t micro_batches : {1, 3}) {
    TrainingTask task = task_for(3, micro_batches);
    const RunBits alone = train_pipelined(task, task.resident(), 5);
    CHECK(alone.steps.front()[1] > task.grad_clip);  // clipping has something to do
    CHECK(first_difference(train_with_two_tables(task, 5), alone) == "");
    // A process without a pipeline adds them up as they come.
    TrainingTask plain = task;
    plain.pipeline = "";
    const RunBits near = train_pipelined(plain, plain.resident(), 5);
    for (std::size_t step = 0; step < 5; ++step)
      for (const std::size_t number : {0u, 1u})
        CHECK(near.steps[step][number] == Approx(alone.steps[step][number]).epsilon(1e-6));
  }
  // Nothing else is other than without one, as long as the norm of all does not matter.
  TrainingTask task = task_for(3, 1);
  task.grad_clip = 0;
  task.optimizer = "sgd";
  const RunBits piped = train_pipelined(task, task.resident(), 1);
  task.pipeline = "";
  const RunBits plain = train_pipelined(task, task.resident(), 1);
  CHECK(piped.steps[0][0] == plain.steps[0][0]);
  REQUIRE(piped.values.size() == plain.values.size());
  for (const auto& [name, bytes] : plain.values)
    if (name.find("wte") == std::string::npos) {
      INFO(name);
      const bool same = piped.values.at(name) == bytes;
      CHECK(same);
    }
}

TEST_CASE("ranks of a pipeline train as one process, bit for bit", "[ranks][pipeline][threads]") {
  constexpr std::array schedules{"layer-split", "gpipe", "1f1b", "zb-h1", "layer-major"};
  for (const std::int64_t micro_batches : {1, 3, 4, 8})
    for (const double dropout : {0.0, 0.1}) {
      TrainingTask task = task_for(3, micro_batches);
      task.dropout = dropout;
      MemoryChoice choice = task.resident();
      const RunBits expected = train_pipelined(task, choice, 5);
      bool turn = dropout > 0;
      for (const std::int64_t ranks : {1, 2, 3})
        for (const int schedule : {0, 1, 2, 3, 4})
          for (const bool inputs : {false, true}) {
            if (schedule == 4 && ranks > 1) continue;
            CAPTURE(micro_batches, dropout, ranks, schedules[schedule], inputs);
            task.pp = ranks;
            task.pipeline = schedules[schedule];
            task.stash = inputs ? "input" : "graph";
            choice = task.resident();
            turn = !turn;
            if (turn) recompute_blocks(choice);
            if (!in_form(4, {micro_batches, dropout > 0, ranks, schedule, inputs})) continue;
            CHECK(first_difference(expected, train_pipelined(task, choice, 5)) == "");
          }
    }
}

TEST_CASE("several stages on a rank, and stages of any number of blocks",
          "[ranks][pipeline][threads]") {
  TrainingTask task = task_for(8, 4);
  const MemoryChoice choice = task.resident();
  const std::int64_t steps = by_form(8, 30);
  const RunBits expected = train_pipelined(task, choice, steps);
  struct Row {
    std::int64_t ranks, virtual_stages;
    const char *pipeline, *split, *stash;
  };
  for (const auto& [ranks, virtual_stages, pipeline, split, stash] :
       {Row{2, 2, "interleaved", "blocks", "graph"}, Row{2, 3, "interleaved", "blocks", "input"},
        Row{4, 2, "interleaved", "blocks", "input"}, Row{4, 1, "1f1b", "1,4,2,1", "graph"},
        Row{3, 1, "gpipe", "parameters", "graph"}, Row{4, 1, "zb-h1", "1,4,2,1", "graph"},
        Row{2, 1, "zb-h1", "blocks", "input"}, Row{1, 2, "interleaved", "blocks", "graph"}}) {
    CAPTURE(ranks, virtual_stages, pipeline, split, stash);
    task.pp = ranks;
    task.virtual_stages = virtual_stages;
    task.pipeline = pipeline;
    task.pipeline_split = split;
    task.stash = stash;
    CHECK(first_difference(expected, train_pipelined(task, choice, steps)) == "");
  }
}

TEST_CASE("replicas that are pipelines train as replicas of one rank",
          "[ranks][pipeline][threads]") {
  const std::int64_t steps = by_form(3, 5);
  for (const char* optimizer : {"adamw", "sgd"})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(optimizer, name_of(dtype));
      TrainingTask task = task_for(4, 12);
      task.dtype = dtype;
      task.optimizer = optimizer;
      task.dp = 2;
      const bool split = dtype == DType::bf16 && task.optimizer == "adamw";
      const MemoryChoice choice = task.resident(split ? StateLayout::split : StateLayout::fp32, 2);
      const RunBits expected = train_pipelined(task, choice, steps);
      if (dtype == DType::f32) {
        TrainingTask plain = task;
        plain.pipeline = "";
        const RunBits near = train_pipelined(plain, choice, steps);
        for (std::size_t step = 0; step < static_cast<std::size_t>(steps); ++step)
          for (const std::size_t number : {0u, 1u})
            CHECK(near.steps[step][number] == Approx(expected.steps[step][number]).epsilon(1e-6));
      }
      task.pp = 2;
      for (const std::int64_t zero : {0, 1})
        for (const int way : {0, 1, 2, 3})
          for (const bool overlap : {true, false}) {
            const std::string pipeline = pipelines[way];
            CAPTURE(zero, pipeline, overlap);
            if (!in_form(2, {dtype == DType::f32, zero, way, overlap})) continue;
            task.zero = zero;
            task.pipeline = pipeline;
            task.virtual_stages = pipeline == "interleaved" ? 2 : 1;
            task.overlap = overlap;
            CHECK(first_difference(expected, train_pipelined(task, choice, steps)) == "");
          }
    }
}

TEST_CASE("replicas that are pipelines shard gradients as replicas of one rank do",
          "[ranks][pipeline][threads]") {
  for (const std::int64_t micro_batches : {1, 4}) {
    // Each stage has two blocks or more, which take turns: so no gradient is summed over
    // micro-batches before it is summed over ranks.
    TrainingTask task = task_for(8, 2 * micro_batches);
    task.dp = 2;
    const MemoryChoice choice = task.resident();
    // A replica with one micro-batch forms sums in the order of ZeRO-1.
    task.zero = micro_batches == 1 ? 1 : 2;
    const RunBits expected = train_pipelined(task, choice, 4);
    task.zero = 2;
    task.pp = 2;
    for (const std::string pipeline : pipelines)
      for (const bool overlap : {true, false}) {
        CAPTURE(micro_batches, pipeline, overlap);
        task.pipeline = pipeline;
        task.virtual_stages = pipeline == "interleaved" ? 2 : 1;
        task.overlap = overlap;
        CHECK(first_difference(expected, train_pipelined(task, choice, 4)) == "");
      }
  }
}

TEST_CASE("sharded gradients that are computed layer by layer have the bits of ZeRO-1",
          "[ranks][pipeline][threads]") {
  const TempDir dir;
  std::string row;
  for (const char kind : {'F', 'B'})
    for (int i = 0; i < 4; ++i)
      for (int micro_batch = 0; micro_batch < 3; ++micro_batch)
        row += fmt::format("{}{}{},", kind == 'F' ? i : 3 - i, kind, micro_batch);
  const auto file = dir.path() / "layers.csv";
  std::ofstream(file) << row.substr(0, row.size() - 1) << "\n";
  TrainingTask task = task_for(4, 6);
  task.dp = 2;
  task.pipeline = file.string();
  task.zero = 1;
  const RunBits expected = train_pipelined(task, task.resident(), 4);
  task.zero = 2;
  CHECK(first_difference(expected, train_pipelined(task, task.resident(), 4)) == "");
}

TEST_CASE("state that streams, in a pipeline", "[ranks][pipeline][threads]") {
  TrainingTask task = task_for(6, 4);
  task.dtype = DType::bf16;
  for (const StateLayout layout : {StateLayout::fp32, StateLayout::split}) {
    const MemoryChoice choice = task.resident(layout);
    task.dp = 2;
    task.zero = 0;
    task.pp = task.virtual_stages = 1;
    task.pipeline = "1f1b";
    const RunBits expected = train_pipelined(task, choice, 6);
    task.pipeline = "interleaved";
    task.pp = 2;
    for (const std::int64_t zero : {0, 1})
      for (const std::int64_t resident : {0, 2, 5})
        for (const std::int64_t stages : {1, 3}) {
          CAPTURE(name_of(layout), zero, resident, stages);
          if (!in_form(2, {layout == StateLayout::fp32, zero, resident, stages / 2})) continue;
          task.zero = zero;
          task.virtual_stages = stages;
          const MemoryChoice streaming =
              offloaded(choice, resident, 3000, 2, resident == 2 ? 3 : 0);
          CHECK(first_difference(expected, train_pipelined(task, streaming, 6)) == "");
        }
  }
}

// Narrow moments are rounded with random numbers, which go by the parameter and the element in it,
// not by a place in the rank's own memory.
TEST_CASE("narrow moments in a pipeline", "[ranks][pipeline][threads]") {
  for (const StateLayout layout : {StateLayout::bf16m, StateLayout::bf16mv, StateLayout::int8}) {
    TrainingTask task = task_for(4, 4);
    task.dtype = DType::bf16;
    const RunBits expected = train_pipelined(task, task.resident(layout), 5);
    task.pp = 2;
    CHECK(first_difference(expected, train_pipelined(task, task.resident(layout), 5)) == "");
  }
}

TEST_CASE("the memory of every rank of a pipeline is planned to the byte",
          "[ranks][pipeline][plan][threads]") {
  for (const char* stash : {"graph", "input"})
    for (const char* pipeline : {"gpipe", "1f1b", "interleaved", "zb-h1"})
      for (const std::int64_t micro_batches : {1, 8}) {
        CAPTURE(stash, pipeline, micro_batches);
        TrainingTask task = task_for(4, 2 * micro_batches);
        task.dp = 2;
        task.pp = 2;
        task.zero = micro_batches == 1 ? 1 : 2;
        task.stash = stash;
        task.pipeline = pipeline;
        task.virtual_stages = std::string(pipeline) == "interleaved" ? 2 : 1;
        MemoryChoice choice = task.resident();
        recompute_blocks(choice);
        CHECK(unplanned_memory(task, choice) == std::vector<std::string>());
      }
}

TEST_CASE("what replicas of a stage exchange fits into what was counted", "[ranks][pipeline]") {
  const auto bytes_of = [](const BucketPlan::Bucket& bucket, std::size_t wide) {
    std::size_t bytes = static_cast<std::size_t>(bucket.space.end - bucket.space.begin) * 2;
    for (const auto& part : bucket.gradients)
      bytes = std::max(bytes, static_cast<std::size_t>(part.end - part.begin) *
                                  (part.narrow ? sizeof(std::uint16_t) : wide));
    return bytes;
  };
  int wrong = 0, seen = 0;
  for (const std::int64_t pp : {1, 2, 3, 5})
    for (const bool narrow : {false, true})
      for (const char* bucket : {"4KiB", "5KiB", "9KiB", "20KiB", "33KiB", "100KiB", "1MiB"}) {
        TrainingTask task = task_for(5, 8);
        task.dtype = DType::bf16;
        task.dp = 2;
        task.pp = pp;
        task.bucket_size = bucket;
        MemoryChoice choice = task.resident(StateLayout::split);
        choice.narrow_gradients = narrow;
        const RunSetup setup = task.setup(DeviceKind::cpu, choice);
        const Mesh mesh{.dp = 2, .pp = static_cast<int>(pp)};
        const std::size_t most = largest_exchanges(task.options(), setup, choice, mesh).data;
        for (int stage = 0; stage < pp; ++stage) {
          const Training training(task.options(), setup, choice, make_meta_device(), HostMemory{},
                                  planned_ranks(mesh, stage));
          for (const auto& one : training.bucket_plan->buckets()) {
            ++seen;
            if (bytes_of(one, sizeof(float)) > most) ++wrong;
          }
        }
      }
  CHECK(seen > 500);
  CHECK(wrong == 0);
}

TEST_CASE("a gradient that is not finite in one stage stops the update in all",
          "[ranks][pipeline][threads]") {
  for (const char* name : {"h.0.ln_1.weight", "h.1.ln_1.weight", "ln_f.weight"}) {
    CAPTURE(name);
    TrainingTask task = task_for(3, 3);
    task.pp = 3;
    const auto run_rank = [&](const Ranks& ranks, const DevicePtr& device) {
      TrainingRun run(task, task.resident(), device, {}, ranks);
      const bool good = run.step().applied;
      if (run.training().space.find(name) != nullptr) run.set_weight(name, 0, 3e38F);
      const bool bad = run.step().applied;
      const auto updates = static_cast<int>(run.training().optimizer->updates());
      if (!good || bad || updates != 1) throw std::runtime_error("it was not stopped");
    };
    CHECK_NOTHROW(on_mesh(task, task.resident(), DeviceKind::cpu, run_rank));
  }
}

TEST_CASE("ranks of a pipeline that share a GPU train as one does, bit for bit",
          "[ranks][pipeline]") {
  if (!have_gpu()) return;
  const std::int64_t steps = by_form(2, 3);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TrainingTask task = task_for(4, 4);
    task.dtype = dtype;
    const MemoryChoice choice =
        task.resident(dtype == DType::bf16 ? StateLayout::split : StateLayout::fp32);
    const RunBits expected = train_pipelined(task, choice, steps, DeviceKind::cuda);
    task.pp = 2;
    for (const bool inputs : {false, true})
      for (const int way : {0, 1, 2, 3}) {
        const std::string pipeline = pipelines[way];
        CAPTURE(name_of(dtype), inputs, pipeline);
        if (!in_form(2, {dtype == DType::f32, inputs, way})) continue;
        task.stash = inputs ? "input" : "graph";
        task.pipeline = pipeline;
        task.virtual_stages = pipeline == "interleaved" ? 2 : 1;
        CHECK(first_difference(expected, train_pipelined(task, choice, steps, DeviceKind::cuda)) ==
              "");
      }
  }
  TrainingTask replicas = task_for(4, 4);
  replicas.dp = 2;
  replicas.zero = 1;
  const MemoryChoice choice = replicas.resident();
  const RunBits expected = train_pipelined(replicas, choice, 2, DeviceKind::cuda);
  replicas.pp = 2;
  CHECK(first_difference(expected, train_pipelined(replicas, choice, 2, DeviceKind::cuda)) == "");
}

}  // namespace sluice::test::pipeline_test
