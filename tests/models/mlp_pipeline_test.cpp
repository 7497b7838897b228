#include <fmt/format.h>

#include <map>
#include <mutex>
#include <optional>

#include "engine/autograd.h"
#include "models/mlp/parallelize.h"
#include "optim/make_optimizer.h"
#include "parallel/comm/transport/thread_transport.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/validator.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

// An MLP in a pipeline is the MLP: losses, gradients and weights after some steps, whatever the
// size of the batch is to that of a micro-batch.

namespace sluice::test::mlp_pipeline_test {
namespace {

constexpr MlpConfig config{.in = 6, .width = 20, .layers = 4, .classes = 7};
constexpr int steps = 3;

MlpBatch batch_of(const DevicePtr& device, std::int64_t rows, std::int64_t split, int step) {
  const auto seed = static_cast<std::uint64_t>(step);
  std::vector<std::int32_t> targets;
  for (const double value : random_values(rows, 100 + seed, 3.5))
    targets.push_back(static_cast<std::int32_t>(value + 3.5));
  return {
      .x = Tensor::from_host(device, {rows, config.in}, DType::f32,
                             random_values(rows * config.in, seed)),
      .targets = Tensor::from_tokens(device, {rows}, targets),
      .split = split,
      .loss = {.scale = 1.0 / static_cast<double>(rows)},
  };
}

/// Losses of all micro-batches of all steps, the last gradients and the last weights.
using Results = std::map<std::string, Values>;

void keep(Results& results, const ParameterSpace& space) {
  for (const auto& slot : space.slots()) {
    results["gradient of " + slot.name] = slot.tensor->grad().to_host();
    results[slot.name] = slot.tensor->to_host();
  }
}

/// A plain loop over micro-batches.
Results alone(std::int64_t rows, std::int64_t split) {
  const DevicePtr device = make_cpu_device(std::size_t{16} << 20);
  Mlp model(config);
  ParameterSpace space(model.parameters(), device, DType::f32, ParameterSpace::Use::training);
  space.initialize(5);
  const auto optimizer = make_sgd(space, {.momentum = 0.9});
  Results results;
  for (int step = 0; step < steps; ++step) {
    const MlpBatch batch = batch_of(device, rows, split, step);
    space.forget_gradients();
    for (std::int64_t first = 0; first < rows; first += split) {
      const std::int64_t count = std::min(split, rows - first);
      const Tensor loss = model
                              .loss(batch.x.slice(first * config.in, {count, config.in}),
                                    batch.targets.slice(first, {count}), batch.loss)
                              .loss;
      results["losses"].push_back(loss.item());
      backward(loss);
    }
    optimizer->step(0.1);
  }
  keep(results, space);
  return results;
}

/// `spill`: inputs beyond so many bytes rest on a host, of which `host_peaks` are the bytes used.
Results in_pipeline(int ranks, const Schedule& schedule, std::int64_t rows, std::int64_t split,
                    Stash stash, std::optional<std::size_t> spill = {},
                    std::vector<std::size_t>* host_peaks = nullptr) {
  const Schedule lowered = lower(schedule);
  validate(lowered);
  const auto of_stage = rank_of_stage(lowered);
  const std::int64_t each = config.layers / schedule.stages;
  Results results;
  std::mutex mutex;
  run_on_threads(ranks, [&](std::unique_ptr<Transport> transport) {
    const int rank = transport->rank();
    const auto together = std::make_shared<Progress>();
    const StageLinks links(
        of_stage, rank,
        [&](std::span<const int> members, std::uint64_t id, const std::string& name) {
          return std::make_shared<Communicator>(
              std::shared_ptr<Transport>(transport->subgroup(members, id)), nullptr,
              Communicator::Options{.name = name, .timeout = 20, .together = together});
        });
    const DevicePtr device = make_cpu_device(std::size_t{16} << 20);
    Mlp model(config);
    MlpBatch batch;
    std::vector<Parameter> parameters;
    std::vector<std::unique_ptr<MlpStage>> stages(of_stage.size());
    std::vector<Stage*> here;
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      const std::int64_t first = static_cast<std::int64_t>(stage) * each;
      if (of_stage[stage] == rank) {
        std::ranges::move(model.parameters(first, first + each), std::back_inserter(parameters));
        stages[stage] = std::make_unique<MlpStage>(model, first, first + each, batch);
      }
      here.push_back(stages[stage].get());
    }
    ParameterSpace space(parameters, device, DType::f32, ParameterSpace::Use::training);
    space.initialize(5);
    const auto optimizer = make_sgd(space, {.momentum = 0.9});
    PipelineExecutor executor(lowered, rank, here, links, stash, device);
    const DevicePtr host = make_cpu_device(std::size_t{1} << 20);
    if (spill) executor.spill(*spill, host);
    Values losses;
    for (int step = 0; step < steps; ++step) {
      batch = batch_of(device, rows, split, step);
      space.forget_gradients();
      executor.run({.loss = [&](int, const Tensor& loss) { losses.push_back(loss.item()); },
                    .before_backward = [](int, int) {}});
      optimizer->step(0.1);
    }
    const std::lock_guard lock(mutex);
    if (host_peaks != nullptr) (*host_peaks)[static_cast<std::size_t>(rank)] = host->arena().peak();
    keep(results, space);
    if (!losses.empty()) results["losses"] = losses;
  });
  return results;
}

void require_same(const Results& results, const Results& expected) {
  REQUIRE(results.size() == expected.size());
  for (const auto& [name, values] : expected) {
    INFO(name);
    REQUIRE(results.contains(name));
    CHECK(results.at(name) == values);
  }
}

}  // namespace

TEST_CASE("an MLP in a pipeline has the bits of one that is whole", "[pipeline][threads]") {
  for (const std::int64_t rows : {1, 16, 32, 37})
    for (const std::int64_t split : {1, 4, 16, 64}) {
      const int micro_batches = static_cast<int>((rows + split - 1) / split);
      const Results expected = alone(rows, split);
      REQUIRE(expected.at("losses").size() == static_cast<std::size_t>(steps * micro_batches));
      for (const int ranks : {1, 2, 4}) {
        INFO(rows << " rows, micro-batches of " << split << ", " << ranks << " ranks");
        require_same(in_pipeline(ranks, gpipe(ranks, micro_batches), rows, split, Stash::graph),
                     expected);
        require_same(in_pipeline(ranks, one_forward_one_backward(ranks, micro_batches), rows, split,
                                 Stash::input),
                     expected);
        for (const Stash stash : {Stash::graph, Stash::input})
          require_same(in_pipeline(ranks, zero_bubble_h1(ranks, micro_batches), rows, split, stash),
                       expected);
        if (ranks == 2)
          require_same(in_pipeline(2, interleaved(2, 2, micro_batches), rows, split, Stash::graph),
                       expected);
      }
    }
}

TEST_CASE("stashed inputs that rest on the host come back as they were", "[pipeline][threads]") {
  const std::int64_t rows = 32, split = 4;
  const std::size_t input = split * config.width * sizeof(float);
  const std::size_t block = (input + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
  const Results expected = alone(rows, split);
  for (const std::size_t stay : {0u, 2u, 7u, 8u}) {
    CAPTURE(stay);
    std::vector<std::size_t> used(2);
    require_same(in_pipeline(2, gpipe(2, 8), rows, split, Stash::input, stay * input, &used),
                 expected);
    CHECK(used == std::vector<std::size_t>{0, (8 - stay) * block});
    std::vector<std::size_t> of_four(4);
    require_same(in_pipeline(4, one_forward_one_backward(4, 8), rows, split, Stash::input,
                             stay * input, &of_four),
                 expected);
    // The second rank has three at most, the last one.
    if (stay == 0) CHECK(of_four == std::vector<std::size_t>{0, 3 * block, 2 * block, block});
    if (stay == 2) CHECK(of_four == std::vector<std::size_t>{0, block, 0, 0});
    require_same(
        in_pipeline(2, interleaved(2, 2, 8), rows, split, Stash::input, stay * input, &used),
        expected);
  }
}

TEST_CASE("micro-batches of an MLP add up to the whole batch", "[pipeline]") {
  const Results parts = alone(37, 5), whole = alone(37, 37);
  for (const auto& [name, values] : whole) {
    INFO(name);
    if (name != "losses") CHECK(relative_l2(parts.at(name), values) < 1e-5);
  }
}

}  // namespace sluice::test::mlp_pipeline_test
