#include <catch2/catch.hpp>
#include <cstring>
#include <mutex>

#include "engine/autograd.h"
#include "parallel/replicas.h"
#include "parallel/thread_transport.h"
#include "tests/support/fixture.h"
#include "tests/support/gradcheck.h"
#include "tests/support/training.h"

// Ranks that share every batch train as one process does that adds up their gradients in the order
// of the ranks: the same bits, whoever updates what. Ranks are threads here.

namespace sluice::test {
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

constexpr std::size_t memory = std::size_t{64} << 20;

/// What the first rank has to show, and that the others have the same steps.
RunBits train_on_ranks(int ranks, const TrainingTask& task, const MemoryChoice& choice,
                       std::int64_t steps) {
  RunBits first;
  std::mutex mutex;
  std::vector<std::vector<std::vector<double>>> all_steps;
  run_on_threads(ranks, [&](std::unique_ptr<Transport> transport) {
    const auto communicator = std::make_shared<Communicator>(
        std::shared_ptr<Transport>(std::move(transport)), nullptr, Communicator::Options{});
    TrainingRun run(task, choice, make_cpu_device(memory), {}, {communicator, communicator});
    RunBits bits = run.train(steps);
    require_equal_weights(run.training().space, *communicator, "at the end");
    const std::lock_guard lock(mutex);
    all_steps.push_back(bits.steps);
    if (communicator->rank() == 0) first = std::move(bits);
  });
  for (const auto& one : all_steps)
    CHECK(one == first.steps);
  return first;
}

/// One process that forms each rank's gradient by itself and adds them in order. It shares nothing
/// with the reduction: plain loops over the buffers.
RunBits train_in_order(int ranks, const TrainingTask& task, const MemoryChoice& choice,
                       std::int64_t steps) {
  TrainingRun run(task, choice, make_cpu_device(memory));
  Training& training = run.training();
  const auto setup = task.setup(DeviceKind::cpu);
  RunBits bits;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Batch whole = task.batch(step);
    std::vector<std::vector<float>> sums;
    double loss = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Batch batch = share_of(whole, rank, ranks, task.batch_size);
      training.space.forget_gradients();
      const std::int64_t rows = task.batch_size / ranks;
      for (std::int64_t row = 0; row < rows; row += choice.micro_batch) {
        const auto part = [&](const std::vector<std::int32_t>& ids) {
          return Tensor::from_tokens(
              run.device(), {choice.micro_batch, task.seq_len},
              std::span(ids).subspan(static_cast<std::size_t>(row * task.seq_len),
                                     static_cast<std::size_t>(choice.micro_batch * task.seq_len)));
        };
        const Tensor one =
            training.model
                .loss(part(batch.tokens), part(batch.targets),
                      {.scale = 1.0 / static_cast<double>(task.batch_size * task.seq_len)},
                      {.seed = setup.trainer.seed,
                       .step = static_cast<std::uint64_t>(step),
                       .first_sample = batch.first_sequence + row,
                       .probability = static_cast<float>(task.dropout)})
                .loss;
        loss += one.item();
        backward(one);
      }
      training.space.settle_gradients();
      const Tensor& gradients = training.space.gradients(false);
      std::vector<float> mine(static_cast<std::size_t>(gradients.size()));
      gradients.copy_bytes_to(std::as_writable_bytes(std::span(mine)));
      sums.push_back(std::move(mine));
    }
    std::vector<float> total = sums[0];
    for (std::size_t rank = 1; rank < sums.size(); ++rank)
      for (std::size_t i = 0; i < total.size(); ++i)
        total[i] += sums[rank][i];
    training.space.gradients(false).copy_bytes_from(std::as_bytes(std::span(total)));
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
  for (const int ranks : {2, 4})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(ranks, name_of(dtype));
      TrainingTask task = task_for(dtype);
      const MemoryChoice choice = task.resident(StateLayout::fp32, 4 / ranks);
      const RunBits expected = train_in_order(ranks, task, choice, 8);
      CHECK(expected.steps.front()[1] > task.grad_clip);  // clipping has something to do
      for (const bool overlap : {true, false})
        for (const std::int64_t zero : {0, 1})
          for (const char* bucket : {"4KiB", "200KiB", "1GiB"}) {
            CAPTURE(overlap, zero, bucket);
            task.overlap = overlap;
            task.zero = zero;
            task.bucket_size = bucket;
            CHECK(first_difference(expected, train_on_ranks(ranks, task, choice, 8)) == "");
          }
    }
}

TEST_CASE("every state layout is sharded without changing a bit", "[ranks][threads]") {
  const ThreadCount one(1);
  for (const StateLayout layout : {StateLayout::fp32, StateLayout::split, StateLayout::bf16m,
                                   StateLayout::bf16mv, StateLayout::int8})
    for (const bool narrow : {false, true})
      for (const int ranks : {2, 3}) {
        CAPTURE(name_of(layout), narrow, ranks);
        TrainingTask task = task_for(DType::bf16);
        task.batch_size = 6;
        MemoryChoice choice = task.resident(layout);
        choice.narrow_gradients = narrow;
        const RunBits whole = train_on_ranks(ranks, task, choice, 6);
        task.zero = 1;
        CHECK(first_difference(whole, train_on_ranks(ranks, task, choice, 6)) == "");
        // State that streams, of some of the blocks and of all.
        for (const std::int64_t resident : {0, 1})
          CHECK(first_difference(
                    whole, train_on_ranks(ranks, task, offloaded(choice, resident, 5000, 3), 6)) ==
                "");
      }
}

TEST_CASE("other optimizers are sharded too", "[ranks][threads]") {
  const ThreadCount one(1);
  for (const char* optimizer : {"sgd", "adafactor"}) {
    CAPTURE(optimizer);
    TrainingTask task = task_for(DType::f32);
    task.optimizer = optimizer;
    const RunBits whole = train_on_ranks(2, task, task.resident(), 5);
    task.zero = 1;
    CHECK(first_difference(whole, train_on_ranks(2, task, task.resident(), 5)) == "");
  }
}

TEST_CASE("a rank holds its part of the state alone", "[ranks][threads]") {
  const ThreadCount one(1);
  TrainingTask task = task_for(DType::bf16);
  const auto bytes_of_state = [&](std::int64_t zero) {
    task.zero = zero;
    std::size_t bytes = 0;
    run_on_threads(4, [&](std::unique_ptr<Transport> transport) {
      const bool first = transport->rank() == 0;
      const auto communicator = std::make_shared<Communicator>(
          std::shared_ptr<Transport>(std::move(transport)), nullptr, Communicator::Options{});
      const auto device = make_cpu_device(memory);
      const TrainingRun run(task, task.resident(), device, {}, {communicator, communicator});
      const auto use = device->arena().peak_by_use();
      if (first) bytes = use[static_cast<std::size_t>(MemoryUse::state)];
    });
    return bytes;
  };
  const std::size_t all = bytes_of_state(0), part = bytes_of_state(1);
  CHECK(part > all / 6);
  CHECK(part < all / 3);
}

TEST_CASE("a gradient that is not finite on one rank stops the update on all", "[ranks][threads]") {
  const ThreadCount one(1);
  for (const std::int64_t zero : {0, 1}) {
    TrainingTask task = task_for(DType::f32);
    task.zero = zero;
    run_on_threads(2, [&](std::unique_ptr<Transport> transport) {
      const auto communicator = std::make_shared<Communicator>(
          std::shared_ptr<Transport>(std::move(transport)), nullptr, Communicator::Options{});
      TrainingRun run(task, task.resident(), make_cpu_device(memory), {},
                      {communicator, communicator});
      const bool good = run.step().applied;
      // The embedding of a token that only the second rank's rows may have is made huge there: its
      // loss overflows, the other rank's does not.
      if (communicator->rank() == 1) run.set_weight("ln_f.weight", 0, 3e38F);
      const bool bad = run.step().applied;
      const auto updates = run.training().optimizer->updates();
      const auto all = communicator->gather_values(
          (good ? 1 : 0) + (bad ? 2 : 0) + 4 * static_cast<int>(updates), "outcome");
      if (communicator->rank() == 0) CHECK(all == std::vector{5, 5});
    });
  }
}

TEST_CASE("validation among ranks is that of one process", "[ranks][threads]") {
  const ThreadCount one(1);
  const TrainingTask task = task_for(DType::f32);
  const auto ids = random_ids(8 * 11 + 1, 400, 3);
  const auto tokens = tokens_in_memory(ids);
  TrainingRun alone(task, task.resident(), make_cpu_device(memory));
  const double expected = alone.training().trainer.evaluate(*tokens, 11);
  run_on_threads(3, [&](std::unique_ptr<Transport> transport) {
    const auto communicator = std::make_shared<Communicator>(
        std::shared_ptr<Transport>(std::move(transport)), nullptr, Communicator::Options{});
    TrainingTask three = task;
    three.batch_size = 3;
    TrainingRun run(three, three.resident(), make_cpu_device(memory), {},
                    {communicator, communicator});
    const auto all =
        communicator->gather_values(run.training().trainer.evaluate(*tokens, 11), "loss");
    if (communicator->rank() == 0) CHECK(all == std::vector(3, expected));
  });
}

}  // namespace sluice::test
