#include <mutex>

#include "apps/plan/memory_plan.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gradcheck.h"
#include "tests/support/training/pipelines.h"

// Ranks that share every batch train as one process does that adds up their gradients in the order
// of the ranks: the same bits, whoever updates what. Ranks are threads here.

namespace sluice::test::data_parallel_test {
namespace {

/// Matrices of several blocks, so that ranks divide them too.
TrainingTask task_for(DType dtype) {
  return {.config = {.n_layer = 2, .n_head = 2, .n_embd = 96, .vocab_size = 400, .n_positions = 8},
          .dtype = dtype,
          .batch_size = 4,
          .seq_len = 8,
          .grad_clip = 1.0,
          .dropout = 0.1};
}

/// Runs `body` as every rank, with the communicators and the device for it.
void on_ranks(int ranks, TrainingTask task, const MemoryChoice& choice, DeviceKind kind,
              const RankOfMesh& body) {
  task.dp = ranks;
  on_mesh(task, choice, kind, body);
}

/// Returns the results of rank 0 and checks that the other ranks have the same steps.
RunBits train_on_ranks(int ranks, const TrainingTask& task, const MemoryChoice& choice,
                       std::int64_t steps, DeviceKind kind = DeviceKind::cpu) {
  RunBits first;
  std::mutex mutex;
  std::vector<std::vector<std::vector<double>>> all_steps;
  on_ranks(ranks, task, choice, kind, [&](const Ranks& among, const DevicePtr& device) {
    TrainingRun run(task, choice, device, {}, among);
    RunBits bits = run.train(steps);
    run.training().require_equal_copies("at the end");
    const std::lock_guard lock(mutex);
    all_steps.push_back(bits.steps);
    if (among.rank() == 0) first = std::move(bits);
  });
  for (const auto& one : all_steps)
    CHECK(one == first.steps);
  return first;
}

using Gradient = std::vector<float>;

/// Returns the gradient of the batch, computed in micro-batches of `rows`; adds up the losses.
Gradient gradient_of(TrainingRun& run, const Batch& batch, std::int64_t step, std::int64_t rows,
                     double& loss) {
  ParameterSpace& space = run.training().space;
  space.forget_gradients();
  for (const double one : run.accumulate(batch, step, rows))
    loss += one;
  space.zero_unused_gradients();
  Gradient gradient(static_cast<std::size_t>(space.layout().wide_size));
  space.gradients()
      .written(false, 0, space.layout().wide_size)
      .copy_bytes_to(std::as_writable_bytes(std::span(gradient)));
  return gradient;
}

void add(Gradient& sum, const Gradient& more) {
  if (sum.empty()) sum.resize(more.size(), -0.0f);
  for (std::size_t i = 0; i < sum.size(); ++i)
    sum[i] += more[i];
}

/// One process that forms each rank's gradient by itself and adds them in order. It shares nothing
/// with the reduction: plain loops over the buffers. With --zero 2 it adds the ranks' gradients of
/// each micro-batch, except those of the tables and of the final norm.
RunBits train_in_order(int ranks, const TrainingTask& task, const MemoryChoice& choice,
                       std::int64_t steps, DeviceKind kind = DeviceKind::cpu) {
  TrainingTask alone = task;
  alone.zero = 0;
  TrainingRun run(alone, choice, device_of_rank(kind, 0));
  Training& training = run.training();
  const SpaceLayout& layout = training.space.layout();
  const auto setup = task.setup(kind);
  const auto passes = static_cast<int>(task.batch_size / ranks / choice.micro_batch);
  RunBits bits;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Batch whole = task.batch(step);
    const auto batch_of = [&](int rank) { return share_of(whole, rank, ranks, task.batch_size); };
    Gradient total;
    double loss = 0, again = 0;
    for (int rank = 0; rank < ranks; ++rank)
      add(total, gradient_of(run, batch_of(rank), step, choice.micro_batch, loss));
    if (task.zero == 2) {
      Gradient by_pass;
      for (int pass = 0; pass < passes; ++pass) {
        Gradient sum;
        for (int rank = 0; rank < ranks; ++rank)
          add(sum, gradient_of(run, share_of(batch_of(rank), pass, passes, task.batch_size / ranks),
                               step, choice.micro_batch, again));
        add(by_pass, sum);
      }
      for (const auto& slot : layout.slots)
        if (!slot.embedding && !slot.name.starts_with("ln_f"))
          std::copy_n(by_pass.begin() + slot.gradient_offset, slot.size,
                      total.begin() + slot.gradient_offset);
    }
    training.space.gradients()
        .written(false, 0, layout.wide_size)
        .copy_bytes_from(std::as_bytes(std::span(total)));
    training.optimizer->step(setup.schedule.at(step),
                             training.space.clip_gradients(task.grad_clip));
    bits.steps.push_back({loss, training.space.gradient_norm(), setup.schedule.at(step), 1, 1});
  }
  RunBits state = run.bits();
  bits.steps.push_back(state.steps.back());
  bits.values = std::move(state.values);
  return bits;
}

}  // namespace

TEST_CASE("ranks train as one process that adds their gradients in order, bit for bit",
          "[ranks][threads]") {
  const ThreadCount one(1);
  const std::int64_t steps = by_form(3, 8);
  for (const int ranks : {2, 4})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(ranks, name_of(dtype));
      TrainingTask task = task_for(dtype);
      const MemoryChoice choice = task.resident(StateLayout::fp32, 4 / ranks);
      const RunBits expected = train_in_order(ranks, task, choice, steps);
      CHECK(expected.steps.front()[1] > task.grad_clip);  // clipping has something to do
      for (const bool overlap : {true, false})
        for (const std::int64_t zero : {0, 1})
          for (int size = 0; const char* bucket : {"4KiB", "200KiB", "1GiB"}) {
            CAPTURE(overlap, zero, bucket);
            if (!in_form(2, {dtype == DType::f32, overlap, zero, size++})) continue;
            task.overlap = overlap;
            task.zero = zero;
            task.bucket_size = bucket;
            CHECK(first_difference(expected, train_on_ranks(ranks, task, choice, steps)) == "");
          }
    }
}

TEST_CASE("ranks that shard gradients add those of each micro-batch in order, bit for bit",
          "[ranks][threads]") {
  const ThreadCount one(1);
  for (const int ranks : {2, 4})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const std::int64_t passes : {1, 3}) {
        TrainingTask task = task_for(dtype);
        task.config.n_layer = 5;                   // of which two have their gradients at a time
        if (passes == 3) task.config.n_embd = 32;  // matrices so small that they share chunks
        task.batch_size = ranks * passes;
        const MemoryChoice choice = task.resident(StateLayout::fp32, 1);
        task.zero = passes == 1 ? 1 : 2;  // with one micro-batch they add in the order of ZeRO-1
        const RunBits expected = train_in_order(ranks, task, choice, 3);
        task.zero = 2;
        for (const bool overlap : {true, false})
          for (const char* bucket : {"4KiB", "200KiB"}) {
            CAPTURE(ranks, name_of(dtype), passes, overlap, bucket);
            task.overlap = overlap;
            task.bucket_size = bucket;
            CHECK(first_difference(expected, train_on_ranks(ranks, task, choice, 3)) == "");
          }
      }
}

TEST_CASE("ranks that share a GPU train as one process does, bit for bit", "[ranks]") {
  if (!have_gpu()) return;
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    if (!long_form() && ranks == 2) continue;  // the order of two summands is no matter
    TrainingTask task = task_for(DType::bf16);
    const MemoryChoice choice = task.resident(StateLayout::split, 4 / ranks);
    const RunBits expected = train_in_order(ranks, task, choice, 3, DeviceKind::cuda);
    task.bucket_size = "200KiB";
    CHECK(first_difference(expected, train_on_ranks(ranks, task, choice, 3, DeviceKind::cuda)) ==
          "");
    task.bucket_size = "64KiB";
    for (const std::int64_t zero : {1, 2})
      for (const std::int64_t cpu : {0, 1}) {
        task.zero = zero;  // with one micro-batch a rank, the order of sums is the same
        CHECK(first_difference(expected,
                               train_on_ranks(ranks, task, offloaded(choice, 1, 9000, 2, cpu), 3,
                                              DeviceKind::cuda)) == "");
      }
    // And as on the CPU, up to the kernels' rounding.
    const RunBits cpu = train_on_ranks(ranks, task, choice, 3);
    for (std::size_t step = 0; step < 3; ++step)
      CHECK(cpu.steps[step][0] == Approx(expected.steps[step][0]).epsilon(2e-3));
  }
}

TEST_CASE("the memory of every rank is planned to the byte", "[ranks][plan][threads]") {
  const ThreadCount one(1);
  for (const std::int64_t zero : {0, 1, 2})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(zero, name_of(dtype));
      TrainingTask task = task_for(dtype);
      task.config.n_layer = 3;
      task.batch_size = 8;  // two micro-batches for each
      task.zero = zero;
      TrainConfig options = task.options();
      options.parallel.dp = 4;
      const MemoryChoice choice = task.resident();
      on_ranks(4, task, choice, DeviceKind::cpu, [&](const Ranks& ranks, const DevicePtr& device) {
        TrainingRun run(task, choice, device, {}, ranks);
        run.train(2);
        const MemoryPlan plan = plan_memory(options, task.setup(DeviceKind::cpu), choice, 0,
                                            {ranks.mesh, ranks.rank()});
        const auto differences =
            ranks.control->gather_values(static_cast<std::int64_t>(plan.peak) -
                                             static_cast<std::int64_t>(device->arena().peak()),
                                         "difference");
        if (ranks.rank() == 0) CHECK(differences == std::vector<std::int64_t>(4, 0));
      });
    }
}

TEST_CASE("every state layout is sharded without changing a bit", "[ranks][threads]") {
  const ThreadCount one(1);
  const std::int64_t steps = by_form(4, 6);
  for (const StateLayout layout : {StateLayout::fp32, StateLayout::split, StateLayout::bf16m,
                                   StateLayout::bf16mv, StateLayout::int8})
    for (const bool narrow : {false, true})
      for (const int ranks : {2, 3}) {
        CAPTURE(name_of(layout), narrow, ranks);
        // In the short form one of the four for each layout, not the same for the next.
        if (!in_form(4, {static_cast<int>(layout), narrow ? 2 : 0, ranks - 2})) continue;
        TrainingTask task = task_for(DType::bf16);
        task.batch_size = 6;
        // One micro-batch a rank, so that sharded gradients are added in the same order.
        MemoryChoice choice = task.resident(layout, task.batch_size / ranks);
        choice.narrow_gradients = narrow;
        const RunBits whole = train_on_ranks(ranks, task, choice, steps);
        for (const std::int64_t zero : {1, 2}) {
          CAPTURE(zero);
          task.zero = zero;
          CHECK(first_difference(whole, train_on_ranks(ranks, task, choice, steps)) == "");
          // State that streams, of some of the blocks and of all, or is updated by the CPU.
          for (const auto& [resident, cpu] : {std::pair(0, 0), {1, 0}, {0, 1}, {1, 1}}) {
            if (!in_form(2, {static_cast<int>(layout), resident, cpu, zero})) continue;
            CHECK(first_difference(
                      whole, train_on_ranks(ranks, task, offloaded(choice, resident, 5000, 3, cpu),
                                            steps)) == "");
          }
        }
      }
}

TEST_CASE("state of an odd number of 16-bit elements is gathered whole", "[ranks][threads]") {
  const ThreadCount one(1);
  TrainingTask task = task_for(DType::bf16);
  task.config.n_head = 1;
  task.config.n_embd = 65;  // 65 * 65 moments are no whole number of 32-bit words
  const MemoryChoice choice = task.resident(StateLayout::bf16mv);
  const RunBits whole = train_on_ranks(2, task, choice, 2);
  task.zero = 1;
  CHECK(first_difference(whole, train_on_ranks(2, task, choice, 2)) == "");
}

TEST_CASE("other optimizers are sharded too", "[ranks][threads]") {
  const ThreadCount one(1);
  for (const char* optimizer : {"sgd", "adafactor", "muon"}) {
    CAPTURE(optimizer);
    TrainingTask task = task_for(DType::f32);
    task.optimizer = optimizer;
    const MemoryChoice choice = task.resident(StateLayout::fp32, 2);
    const RunBits whole = train_on_ranks(2, task, choice, 5);
    for (const std::int64_t zero : {1, 2}) {
      CAPTURE(zero);
      task.zero = zero;
      CHECK(first_difference(whole, train_on_ranks(2, task, choice, 5)) == "");
    }
  }
}

TEST_CASE("a rank holds its part of the state alone", "[ranks][threads]") {
  const ThreadCount one(1);
  TrainingTask task = task_for(DType::bf16);
  const auto bytes_of_state = [&](std::int64_t zero) {
    task.zero = zero;
    std::size_t bytes = 0;
    on_ranks(4, task, task.resident(), DeviceKind::cpu,
             [&](const Ranks& ranks, const DevicePtr& device) {
               const TrainingRun run(task, task.resident(), device, {}, ranks);
               const auto use = device->arena().peak_by_use();
               if (ranks.rank() == 0) bytes = use[static_cast<std::size_t>(MemoryUse::state)];
             });
    return bytes;
  };
  const std::size_t all = bytes_of_state(0), part = bytes_of_state(1);
  CHECK(part > all / 6);
  CHECK(part < all / 3);
}

TEST_CASE("a gradient that is not finite on one rank stops the update on all", "[ranks][threads]") {
  const ThreadCount one(1);
  for (const std::int64_t zero : {0, 1, 2}) {
    TrainingTask task = task_for(DType::f32);
    task.zero = zero;
    on_ranks(2, task, task.resident(), DeviceKind::cpu,
             [&](const Ranks& ranks, const DevicePtr& device) {
               TrainingRun run(task, task.resident(), device, {}, ranks);
               const bool good = run.step().applied;
               if (ranks.rank() == 1) run.set_weight("ln_f.weight", 0, 3e38F);
               const bool bad = run.step().applied;
               const auto updates = static_cast<int>(run.training().optimizer->updates());
               const auto all = ranks.control->gather_values(
                   (good ? 1 : 0) + (bad ? 2 : 0) + 4 * updates, "outcome");
               if (ranks.rank() == 0) CHECK(all == std::vector{5, 5});
             });
  }
}

TEST_CASE("validation among ranks is that of one process", "[ranks][threads]") {
  const ThreadCount one(1);
  const TrainingTask task = task_for(DType::f32);
  const auto ids = random_ids(8 * 11 + 1, 400, 3);
  const auto tokens = tokens_in_memory(ids);
  TrainingRun alone(task, task.resident(), make_cpu_device(memory_of_rank));
  const double expected = alone.training().trainer.evaluate(*tokens, {tokens->size(), 11, 8, 1});
  TrainingTask three = task;
  three.batch_size = 3;
  on_ranks(3, three, three.resident(), DeviceKind::cpu,
           [&](const Ranks& ranks, const DevicePtr& device) {
             TrainingRun run(three, three.resident(), device, {}, ranks);
             const auto all = ranks.control->gather_values(
                 run.training().trainer.evaluate(*tokens, {tokens->size(), 11, 8, 1}), "loss");
             if (ranks.rank() == 0) CHECK(all == std::vector(3, expected));
           });
}

TEST_CASE("ranks without a validation batch give their weights to those that have one",
          "[ranks][threads]") {
  const ThreadCount one(1);
  TrainingTask task = task_for(DType::bf16);
  task.batch_size = 3;
  const auto tokens = tokens_in_memory(random_ids(9, 400, 3));
  for (const DeviceKind kind : device_kinds())
    for (const MemoryChoice& choice : {task.resident(), offloaded(task.resident(), 0, 5000, 2)}) {
      CAPTURE(static_cast<int>(kind), choice.offloads_state());
      std::vector<double> losses;
      for (const std::int64_t zero : {0, 1}) {
        task.zero = zero;
        on_ranks(3, task, choice, kind, [&](const Ranks& ranks, const DevicePtr& device) {
          TrainingRun run(task, choice, device, {}, ranks);
          run.step();
          const double loss = run.training().trainer.evaluate(*tokens, {tokens->size(), 3, 8, 1});
          if (ranks.rank() == 0) losses.push_back(loss);
        });
      }
      CHECK(losses[0] == losses[1]);
    }
}

}  // namespace sluice::test::data_parallel_test
