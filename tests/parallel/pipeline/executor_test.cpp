#include "parallel/pipeline/executor.h"

#include <chrono>

#include "parallel/comm/transport/thread_transport.h"
#include "parallel/pipeline/schedule_text.h"
#include "parallel/pipeline/validator.h"
#include "tests/parallel/pipeline/all_schedules.h"
#include "tests/parallel/pipeline/stages.h"
#include "tests/parallel/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gradcheck.h"

// Whatever the schedule and however many ranks: a pipeline computes what one loop over the
// micro-batches does, bit for bit, in the memory that the schedule promises.

namespace sluice::test::executor_test {
namespace {

using Step = std::vector<std::vector<double>>;

/// The results of steps: losses by micro-batch, then gradients and weights of every stage.
struct Steps {
  std::vector<Step> losses, gradients, weights;
  explicit Steps(int count, const Schedule& schedule) {
    const auto steps = static_cast<std::size_t>(count);
    losses.assign(steps, Step(static_cast<std::size_t>(schedule.micro_batches)));
    gradients.assign(steps, Step(static_cast<std::size_t>(schedule.stages)));
    weights = gradients;
  }
  bool operator==(const Steps&) const = default;
};

SmallData data_of(int step, bool grows) {
  return {.rows = grows ? 3 + 2 * (step % 2) : 3, .step = static_cast<std::uint64_t>(step)};
}

/// A plain loop in one process, with one graph through all stages.
Steps in_sequence(const Schedule& schedule, int steps, bool grows = false) {
  const ThreadCount one(1);
  const DevicePtr device = make_cpu_device(std::size_t{64} << 20);
  SmallData data;
  std::vector<std::unique_ptr<SmallStage>> stages;
  for (int s = 0; s < schedule.stages; ++s)
    stages.push_back(std::make_unique<SmallStage>(s, schedule.stages, data, device));
  Steps result(steps, schedule);
  for (int step = 0; step < steps; ++step) {
    const auto at = static_cast<std::size_t>(step);
    data = data_of(step, grows);
    for (const auto& stage : stages)
      stage->forget();
    for (int m = 0; m < schedule.micro_batches; ++m) {
      Tensor x;
      for (const auto& stage : stages)
        x = stage->forward(m, x);
      result.losses[at][static_cast<std::size_t>(m)].push_back(x.item());
      backward(x);
    }
    for (std::size_t s = 0; s < stages.size(); ++s) {
      result.gradients[at][s] = stages[s]->gradients();
      stages[s]->update();
      result.weights[at][s] = stages[s]->weights();
    }
  }
  return result;
}

/// One rank of a pipeline, as a thread.
struct Rank {
  Rank(std::unique_ptr<Transport> made, const Schedule& lowered, Stash stash, double timeout = 60)
      : transport(std::move(made)),
        device(make_cpu_device(std::size_t{64} << 20)),
        of_stage(rank_of_stage(lowered)),
        stages(static_cast<std::size_t>(lowered.stages)),
        links(of_stage, transport->rank(),
              [&](std::span<const int> members, std::uint64_t id, const std::string& name) {
                return std::make_shared<Communicator>(
                    transport->subgroup(members, id), nullptr,
                    Communicator::Options{.name = name, .timeout = timeout, .together = progress});
              }),
        executor(lowered, transport->rank(), mine(lowered), links, stash, device) {}

  std::vector<Stage*> mine(const Schedule& lowered) {
    std::vector<Stage*> all;
    for (int s = 0; s < lowered.stages; ++s) {
      auto& stage = stages[static_cast<std::size_t>(s)];
      if (of_stage[static_cast<std::size_t>(s)] == transport->rank())
        stage = std::make_unique<SmallStage>(s, lowered.stages, data, device);
      all.push_back(stage.get());
    }
    return all;
  }

  const ThreadCount one{1};
  std::shared_ptr<Transport> transport;
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();
  DevicePtr device;
  SmallData data;
  std::vector<int> of_stage;
  std::vector<std::unique_ptr<SmallStage>> stages;
  StageLinks links;
  PipelineExecutor executor;
};

const PipelineExecutor::Hooks deaf{.loss = [](int, const Tensor&) {},
                                   .before_backward = [](int, int) {}};

Steps in_pipeline(const Schedule& lowered, Stash stash, int steps, bool grows = false) {
  Steps result(steps, lowered);  // every element is written by one rank alone
  run_on_threads(static_cast<int>(lowered.ranks.size()), [&](std::unique_ptr<Transport> made) {
    Rank rank(std::move(made), lowered, stash);
    for (int step = 0; step < steps; ++step) {
      const auto at = static_cast<std::size_t>(step);
      rank.data = data_of(step, grows);
      std::map<int, int> next;  // micro-batch to go backward, by stage
      for (const auto& stage : rank.stages)
        if (stage) {
          stage->forget();
          stage->calls.clear();
        }
      rank.executor.run(
          {.loss =
               [&](int m, const Tensor& loss) {
                 result.losses[at][static_cast<std::size_t>(m)].push_back(loss.item());
               },
           .before_backward =
               [&](int s, int m) { expect(next[s]++ == m, "micro-batches go back in order"); }});
      for (std::size_t s = 0; s < rank.stages.size(); ++s) {
        const auto& stage = rank.stages[s];
        if (!stage) continue;
        expect(next[static_cast<int>(s)] == lowered.micro_batches, "all were announced");
        const bool twice = stash == Stash::input && s + 1 < rank.stages.size();
        for (const auto& [m, calls] : stage->calls)
          expect(calls == (twice ? 2 : 1), "a stage computes as often as it must");
        result.gradients[at][s] = stage->gradients();
        stage->update();
        result.weights[at][s] = stage->weights();
      }
    }
  });
  return result;
}

Schedule lowered(const Schedule& computing) {
  Schedule all = lower(computing);
  validate(all);
  return all;
}

/// Those that the ranks' number allows, and one that was read.
NamedSchedules schedules_for(int ranks, int micro_batches) {
  NamedSchedules all{{"layer_split", layer_split(ranks, micro_batches)},
                     {"gpipe", gpipe(ranks, micro_batches)},
                     {"1f1b", one_forward_one_backward(ranks, micro_batches)},
                     {"zb-h1", zero_bubble_h1(ranks, micro_batches)},
                     {"interleaved 2", interleaved(ranks, 2, micro_batches)},
                     {"interleaved 3", interleaved(ranks, 3, micro_batches)},
                     {"read", schedule_from_csv(to_csv(interleaved(ranks, 2, micro_batches)))}};
  if (ranks == 1) all.emplace_back("layer-major", layer_major(3, micro_batches));
  return all;
}

/// Returns the peak memory of a pipeline step on every rank.
std::vector<std::size_t> peaks(const Schedule& computing, Stash stash, int steps = 1) {
  const Schedule schedule = lowered(computing);
  std::vector<std::size_t> bytes(schedule.ranks.size());
  run_on_threads(static_cast<int>(bytes.size()), [&](std::unique_ptr<Transport> made) {
    const auto number = static_cast<std::size_t>(made->rank());
    Rank rank(std::move(made), schedule, stash);
    const std::size_t before = rank.device->arena().in_use();
    for (int step = 0; step < steps; ++step)
      rank.executor.run(deaf);
    expect(rank.device->arena().in_use() == before, "a step gives all memory back");
    bytes[number] = rank.device->arena().peak();
  });
  return bytes;
}

}  // namespace

TEST_CASE("a pipeline computes what one loop does, bit for bit", "[pipeline][threads]") {
  std::int64_t place = 0;
  for (const int ranks : {1, 2, 4})
    for (const int micro_batches : {1, 3, 4, 8, 32})
      for (const auto& [name, computing] : schedules_for(ranks, micro_batches)) {
        if (micro_batches == 32 && ranks < 4) continue;
        const Steps expected = in_sequence(computing, 3);
        REQUIRE(expected.weights[0] != expected.weights[2]);
        for (const Stash stash : {Stash::graph, Stash::input}) {
          const std::int64_t other = place++ / 2 + (stash == Stash::input);
          if (!in_form(2, {other, ranks, micro_batches})) continue;
          CAPTURE(ranks, micro_batches, name, stash == Stash::input);
          const Steps found = in_pipeline(lowered(computing), stash, 3);
          CHECK(found.losses == expected.losses);
          CHECK(found.gradients == expected.gradients);
          CHECK(found.weights == expected.weights);
        }
      }
}

TEST_CASE("eight ranks with two stages each", "[pipeline][threads]") {
  const Schedule computing = interleaved(8, 2, 8);
  CHECK(in_pipeline(lowered(computing), Stash::graph, 2) == in_sequence(computing, 2));
}

TEST_CASE("neighbouring stages may be on one rank, and stages in any order of ranks",
          "[pipeline][threads]") {
  const Schedule computing = schedule_from_csv(
      "# stages 0, 1 and 3 here\n"
      "0F0,1F0,0F1,1F1,3F0,3B0,3F1,3B1,1B0,0B0,1B1,0B1\n"
      "2F0,2F1,2B0,2B1\n");
  const Schedule split = schedule_from_csv(
      "0F0,1F0,0F1,1F1,3F0,3B0,3F1,3B1,3W0,1B0,0B0,1B1,1W0,1W1,3W1,0W0,0B1,0W1\n"
      "2F0,2F1,2B0,2B1,2W0,2W1\n");
  const Schedule backwards = schedule_from_csv("1F0,1B0,1F1,1B1\n0F0,0F1,0B0,0B1\n");
  for (const Stash stash : {Stash::graph, Stash::input})
    for (const Schedule& one : {computing, split, backwards})
      CHECK(in_pipeline(lowered(one), stash, 3) == in_sequence(one, 3));
}

TEST_CASE("micro-batches of another size with every step", "[pipeline][threads]") {
  for (const Stash stash : {Stash::graph, Stash::input}) {
    const Schedule computing = one_forward_one_backward(2, 5);
    CHECK(in_pipeline(lowered(computing), stash, 4, true) == in_sequence(computing, 4, true));
  }
}

TEST_CASE("forward alone", "[pipeline][threads]") {
  std::vector<std::vector<std::size_t>> all;
  for (const int micro_batches : {1, 8, 500}) {
    Schedule computing{.stages = 3, .micro_batches = micro_batches};
    computing.ranks.resize(3);
    for (int stage = 0; stage < 3; ++stage)
      for (int m = 0; m < micro_batches; ++m)
        computing.ranks[static_cast<std::size_t>(stage)].push_back(
            {Action::Kind::forward, stage, m});
    const Schedule schedule = lower(computing);
    Step losses(static_cast<std::size_t>(micro_batches));
    std::vector<std::size_t> bytes(3);
    run_on_threads(3, [&](std::unique_ptr<Transport> made) {
      const auto number = static_cast<std::size_t>(made->rank());
      Rank rank(std::move(made), schedule, Stash::graph);
      rank.executor.run({.loss =
                             [&](int m, const Tensor& loss) {
                               losses[static_cast<std::size_t>(m)].push_back(loss.item());
                             },
                         .before_backward = {}});
      for (const Tensor& leaf : rank.stages[number]->leaves)
        expect(!leaf.grad(), "no gradient is added");
      bytes[number] = rank.device->arena().peak();
    });
    CHECK(losses == in_sequence(computing, 1).losses[0]);
    all.push_back(bytes);
  }
  // However many there are.
  CHECK(all[1] == all[2]);
}

TEST_CASE("one forward, one backward takes the same memory for any number of micro-batches",
          "[pipeline][threads]") {
  for (const Stash stash : {Stash::graph, Stash::input}) {
    const auto few = peaks(one_forward_one_backward(4, 8), stash);
    CHECK(peaks(one_forward_one_backward(4, 1000), stash) == few);
    CHECK(peaks(one_forward_one_backward(4, 8), stash, 3) == few);
    const auto split = peaks(zero_bubble_h1(4, 8), stash);
    CHECK(peaks(zero_bubble_h1(4, 1000), stash) == split);
    CHECK(peaks(zero_bubble_h1(4, 8), stash, 3) == split);
  }
}

TEST_CASE("GPipe keeps the stash of every micro-batch and nothing else", "[pipeline][threads]") {
  // Measures by hand what remains after a stage's forward pass.
  const auto stash_of = [](int stage, Stash stash) {
    const DevicePtr device = make_cpu_device(std::size_t{1} << 20);
    const SmallData data;
    SmallStage one(stage, 4, data, device);
    const std::size_t before = device->arena().in_use();
    Tensor input;
    if (stage > 0) input = Tensor::zeros(device, {data.rows, width}, DType::f32);
    if (stash == Stash::input) {
      const std::size_t rounded = (data.rows * width * sizeof(float) + Arena::alignment - 1) /
                                  Arena::alignment * Arena::alignment;
      const std::size_t bytes = device->arena().in_use() - before;
      REQUIRE(bytes == (stage > 0 ? rounded : 0));
      return bytes;
    }
    if (input) input.set_requires_grad(true);
    Tensor result = one.forward(0, input);
    const Edge edge = edge_to(result);
    if (stage < 3) result = {};
    return device->arena().in_use() - before;
  };
  for (const Stash stash : {Stash::graph, Stash::input}) {
    const auto few = peaks(gpipe(4, 8), stash), many = peaks(gpipe(4, 40), stash);
    for (int rank = 0; rank < 4; ++rank) {
      CAPTURE(rank, stash == Stash::input);
      const auto at = static_cast<std::size_t>(rank);
      CHECK(many[at] - few[at] == 32 * stash_of(rank, stash));
    }
  }
}

TEST_CASE("thousands of micro-batches", "[pipeline][threads]") {
  const Schedule computing = one_forward_one_backward(4, 4000);
  const Schedule schedule = lowered(computing);
  const Steps found = in_pipeline(schedule, Stash::graph, 1);
  CHECK(found == in_sequence(computing, 1));
}

TEST_CASE("a stage that throws ends all ranks with what it said", "[pipeline][threads]") {
  using Clock = std::chrono::steady_clock;
  const Schedule schedule = lowered(interleaved(4, 2, 8));
  for (const int stage : {0, 2, 5, 7})
    for (const bool forwards : {true, false}) {
      CAPTURE(stage, forwards);
      const auto start = Clock::now();
      const auto broken = [&](std::unique_ptr<Transport> made) {
        Rank rank(std::move(made), schedule, Stash::graph, 5);
        PipelineExecutor::Hooks hooks = deaf;
        auto& one = rank.stages[static_cast<std::size_t>(stage)];
        if (one && forwards)
          one->before_forward = [](int m) { expect(m != 5, "micro-batch 5 is bad"); };
        if (!forwards)
          hooks.before_backward = [&](int s, int m) {
            expect(s != stage || m != 5, "micro-batch 5 is bad");
          };
        rank.executor.run(hooks);
      };
      CHECK_THROWS_WITH(run_on_threads(4, broken), "micro-batch 5 is bad");
      CHECK(Clock::now() - start < std::chrono::seconds(4));
    }
}

}  // namespace sluice::test::executor_test
