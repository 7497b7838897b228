#include <algorithm>
#include <set>
#include <span>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/training/training.h"

// The place of the optimizer state changes no bit of a training: losses, norms, weights and state
// equal those of a run that keeps all of it on the device, in whatever order streams execute.

namespace sluice::test::offload_test {
namespace {

/// A way to hold weights, gradients and state.
struct Numbers {
  DType dtype;
  StateLayout layout;
  bool narrow_gradients = false;
};
/// Every layout with bf16 weights, some with gradients summed in bf16, and for other weights the
/// layouts whose kernels differ.
constexpr Numbers all_numbers[] = {
    {DType::f32, StateLayout::fp32},         {DType::f32, StateLayout::int8},
    {DType::bf16, StateLayout::fp32},        {DType::bf16, StateLayout::split},
    {DType::bf16, StateLayout::split, true}, {DType::bf16, StateLayout::bf16m},
    {DType::bf16, StateLayout::bf16mv},      {DType::bf16, StateLayout::int8},
    {DType::bf16, StateLayout::int8, true},  {DType::f16, StateLayout::fp32},
    {DType::f16, StateLayout::int8}};
/// The short form: every layout and every type of weights once, and narrow gradients.
constexpr Numbers few_numbers[] = {{DType::f32, StateLayout::int8},
                                   {DType::bf16, StateLayout::split, true},
                                   {DType::bf16, StateLayout::bf16m},
                                   {DType::bf16, StateLayout::bf16mv},
                                   {DType::f16, StateLayout::fp32}};

std::span<const Numbers> numbers() {
  return by_form<std::span<const Numbers>>(few_numbers, all_numbers);
}

const std::int64_t steps = by_form(4, 20);

struct Offloading {
  std::int64_t resident_blocks, chunk;
  int staging;
  std::int64_t cpu_blocks = 0, speculative_blocks = 0;
};
/// Whole matrices, several chunks a matrix (with a shorter last one), and more places than chunks.
const Offloading placements[] = {
    {0, std::int64_t{4} << 20, 4}, {1, 5000, 1}, {0, 3000, 2}, {2, 1600, 3}, {0, 9000, 64}};
/// The CPU updates some blocks, all that are on the host, all that there are.
const Offloading shared_placements[] = {
    {0, 5000, 2, 1}, {1, 1600, 1, 2}, {0, std::int64_t{4} << 20, 4, 3}, {1, 3000, 64, 1}};
/// Updates begin under the backward pass: of some blocks, of all, of those below the CPU's.
const Offloading speculative_placements[] = {{0, 5000, 2, 0, 1},
                                             {0, 1600, 1, 0, 3},
                                             {1, std::int64_t{4} << 20, 4, 0, 2},
                                             {0, 3000, 3, 1, 1},
                                             {0, 3000, 64, 0, 2}};

/// A bound that some of the steps exceed and others do not: other precisions' norms are much like
/// those of fp32 on the CPU.
double dividing_norm(TrainingTask task) {
  task.dtype = DType::f32;
  task.grad_clip = 0;
  TrainingRun run(task, task.resident(), make_cpu_device(64 << 20));
  run.train(steps);
  std::vector<double> norms;
  for (const TrainStep& step : run.steps())
    norms.push_back(step.gradient_norm);
  std::ranges::sort(norms);
  // Halfway, for a norm that is nearly the bound is clipped on one device and not on the other.
  return (norms[norms.size() / 2 - 1] + norms[norms.size() / 2]) / 2;
}

/// Returns how many steps were clipped, and how many were applied unclipped.
std::pair<int, int> count_clipped(const TrainingRun& run, double bound) {
  std::pair<int, int> counts{0, 0};
  for (const TrainStep& step : run.steps())
    if (step.applied) ++(step.gradient_norm > bound ? counts.first : counts.second);
  return counts;
}

/// Trains with all state on the device, then with the placement of the seed, in the long form with
/// a second one too, each with a seed of its own. (There are at least as many numbers as
/// placements, so that the short form too sees each of them.)
void check_placements(TrainingTask task, const MemoryChoice& choice, std::uint64_t& seed,
                      std::span<const Offloading> among = placements, std::size_t step = 2) {
  CAPTURE(name_of(task.dtype), name_of(choice.layout), choice.narrow_gradients, choice.micro_batch,
          task.optimizer);
  task.grad_clip = dividing_norm(task);
  TrainingRun reference(task, choice, open_gpu(1));
  const RunBits expected = reference.train(steps);
  const auto [clipped, whole] = count_clipped(reference, task.grad_clip);
  CHECK(clipped >= by_form(1, 4));
  CHECK(whole >= by_form(1, 4));
  const auto at = [&](std::uint64_t i) { return among[i % among.size()]; };
  std::vector<Offloading> chosen{at(seed)};
  if (long_form()) chosen.push_back(at(seed + step));
  for (const Offloading& placement : chosen) {
    CAPTURE(seed, placement.resident_blocks, placement.chunk, placement.staging,
            placement.cpu_blocks, placement.speculative_blocks);
    TrainingRun run(task,
                    offloaded(choice, placement.resident_blocks, placement.chunk, placement.staging,
                              placement.cpu_blocks, placement.speculative_blocks),
                    open_gpu(++seed));
    CHECK(run.training().optimizer->streams() ==
          (placement.resident_blocks + placement.cpu_blocks < 3));
    CHECK(run.training().optimizer->shares_cpu() == (placement.cpu_blocks > 0));
    CHECK(first_difference(run.train(steps), expected) == "");
    CHECK(run.training().optimizer->moved().to_device > 0);
    CHECK(run.training().optimizer->undone() == (placement.speculative_blocks > 0 ? clipped : 0));
  }
}

}  // namespace

TEST_CASE("state on the host changes no bit of a training", "[offload]") {
  if (!have_gpu()) return;
  std::uint64_t seed = 0;
  for (const auto& [dtype, layout, narrow] : numbers()) {
    // 2 micro-batches an update, or 4, which the short form leaves to the last task.
    const bool many = long_form() && dtype == DType::bf16;
    const TrainingTask task{.dtype = dtype, .batch_size = many ? 4 : 2, .seq_len = 8};
    MemoryChoice choice = task.resident(layout);
    choice.narrow_gradients = narrow;
    check_placements(task, choice, seed);
  }
  // Once more, so that six or ten orders of the streams have been seen: rows of two sequences.
  check_placements({.batch_size = by_form(8, 4), .seq_len = by_form(8, 16)},
                   TrainingTask{}.resident(StateLayout::fp32, 2), seed);
  CHECK(seed >= by_form<std::uint64_t>(6, 10));
}

TEST_CASE("the CPU's share of the updates changes no bit of a training", "[offload]") {
  if (!have_gpu()) return;
  std::uint64_t seed = 60;
  for (const auto& [dtype, layout, narrow] : numbers()) {
    const TrainingTask task{.dtype = dtype, .seq_len = 8};
    MemoryChoice choice = task.resident(layout);
    choice.narrow_gradients = narrow;
    check_placements(task, choice, seed, shared_placements, 1);
  }
}

TEST_CASE("updates that begin under the backward pass change no bit of a training", "[offload]") {
  if (!have_gpu()) return;
  std::uint64_t seed = 90;
  for (const auto& [dtype, layout, narrow] : numbers()) {
    const TrainingTask task{
        .dtype = dtype, .batch_size = dtype == DType::bf16 ? 2 : 1, .seq_len = 8};
    MemoryChoice choice = task.resident(layout);
    choice.narrow_gradients = narrow;
    check_placements(task, choice, seed, speculative_placements, 2);
  }
}

TEST_CASE("state of SGD on the host changes no bit either", "[offload]") {
  if (!have_gpu()) return;
  std::uint64_t seed = 20;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool shared : {false, true}) {
      if (!long_form() && shared == (dtype == DType::f32)) continue;
      const TrainingTask task{.dtype = dtype, .seq_len = 8, .rate = 0.1, .optimizer = "sgd"};
      check_placements(task, task.resident(), seed,
                       shared ? std::span<const Offloading>(shared_placements) : placements, 1);
    }
}

TEST_CASE("state of Muon on the host changes no bit either", "[offload]") {
  if (!have_gpu()) return;
  std::uint64_t seed = 25;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool early : {false, true}) {
      const TrainingTask task{.dtype = dtype, .seq_len = 8, .optimizer = "muon"};
      const std::span<const Offloading> among =
          early ? std::span(speculative_placements).first(3) : placements;
      check_placements(task,
                       task.resident(dtype == DType::bf16 ? StateLayout::split : StateLayout::fp32),
                       seed, among, 1);
    }
}

TEST_CASE("with dropout and recompute, state on the host changes no bit", "[offload]") {
  if (!have_gpu()) return;
  std::uint64_t seed = 30;
  const TrainingTask task{.dtype = DType::bf16, .seq_len = 8, .dropout = 0.1};
  MemoryChoice choice = task.resident(StateLayout::split);
  choice.placement.set_recompute({Recompute::block, Recompute::gelu_ln, Recompute::gelu});
  check_placements(task, choice, seed);
}

TEST_CASE("inputs of blocks that rest on the host change no bit", "[offload]") {
  if (!have_gpu()) return;
  const TrainingTask task{.dtype = DType::bf16, .batch_size = 4, .seq_len = 8, .dropout = 0.1};
  const MemoryChoice choice = task.resident(StateLayout::split);
  const RunBits expected = TrainingRun(task, choice, open_gpu(40)).train(steps);
  MemoryChoice resting = choice;
  std::uint64_t seed = 40;
  for (const auto& modes : {std::vector(3, Recompute::block_on_host),
                            {Recompute::block_on_host, Recompute::gelu, Recompute::block_on_host}})
    for (const std::int64_t resident : {3, 1}) {
      const bool all = modes[1] == Recompute::block_on_host;
      if (!long_form() && all == (resident == 3)) continue;
      resting.placement.set_recompute(modes);
      CAPTURE(all, resident);
      TrainingRun run(task, offloaded(resting, resident, 5000, 2), open_gpu(++seed));
      CHECK(first_difference(run.train(steps), expected) == "");
      // All but the two put down last come back.
      const auto inputs =
          static_cast<std::uint64_t>(std::ranges::count(modes, Recompute::block_on_host));
      const std::uint64_t input = std::uint64_t{8} * 64 * 2, state = std::uint64_t{12} * 64 * 64;
      const StreamedBytes moved = run.steps().back().report.moved;
      const std::uint64_t streamed = state * 10 * static_cast<std::uint64_t>(3 - resident);
      CHECK(moved.to_host == 4 * (inputs - 1) * input + streamed);
      CHECK(moved.to_device == 4 * (inputs - 2) * input + streamed);
    }
}

TEST_CASE("every copy to and from the host has its name in a step's timeline", "[offload]") {
  if (!have_gpu()) return;
  const TrainingTask task{.dtype = DType::bf16, .batch_size = 4, .seq_len = 8};
  MemoryChoice choice = task.resident(StateLayout::split);
  choice.placement.set_recompute(Recompute::block_on_host);
  TrainingRun run(task, offloaded(choice, 0, 5000, 2, 1, 1), open_gpu(50));
  run.train(3);
  std::set<std::string> copies;
  for (const auto& [name, lane, start, length, label] : run.training().trainer.spans())
    if (lane != Timeline::Lane::compute)
      copies.insert(std::string(name) + (lane == Timeline::Lane::to_device ? " down"
                                         : lane == Timeline::Lane::to_host ? " up"
                                                                           : ""));
  CHECK(copies == std::set<std::string>{"cpu update", "drain up", "fetch down", "gradients up",
                                        "put down up", "save up", "take up down", "weights down"});
}

TEST_CASE("all that rests on the host moves once each way a step", "[offload]") {
  if (!have_gpu()) return;
  const TrainingTask task{.dtype = DType::bf16};
  for (const StateLayout layout : {StateLayout::fp32, StateLayout::split})
    for (const std::int64_t resident : {0, 2}) {
      CAPTURE(name_of(layout), resident);
      TrainingRun run(task, offloaded(task.resident(layout), resident, 1 << 20, 3), open_gpu(4));
      run.train(3);
      // The four matrices of a block: 12 * 64 * 64 elements. Nothing of them is padded.
      const auto block = std::uint64_t{12} * 64 * 64;
      const std::uint64_t bytes = block * static_cast<std::uint64_t>(3 - resident) *
                                  (layout == StateLayout::split ? 10 : 12);
      CHECK(run.host().pinned->arena().in_use() == bytes);
      CHECK(run.training().optimizer->moved().to_device == bytes);
      CHECK(run.training().optimizer->moved().to_host == bytes);
    }
}

TEST_CASE("what the CPU updates stays where it rests", "[offload]") {
  if (!have_gpu()) return;
  const std::uint64_t block = std::uint64_t{12} * 64 * 64;
  struct Way {
    StateLayout layout;
    bool narrow;
    std::uint64_t state, down;  ///< bytes a parameter; weights that are halves come along
  };
  for (const auto& [layout, narrow, state, down] : {Way{StateLayout::fp32, false, 12, 4},
                                                    {StateLayout::split, false, 10, 6},
                                                    {StateLayout::split, true, 10, 4}}) {
    CAPTURE(name_of(layout), narrow);
    const TrainingTask task{.dtype = DType::bf16};
    MemoryChoice choice = offloaded(task.resident(layout), 0, 1 << 20, 3, 1);
    choice.narrow_gradients = narrow;
    TrainingRun run(task, choice, open_gpu(4));
    run.train(3);
    CHECK(run.host().ordinary->arena().in_use() == block * state);
    CHECK(run.training().optimizer->moved().to_host == block * (2 * state + down));
    CHECK(run.training().optimizer->moved().to_device == block * (2 * state + 2));
  }
}

}  // namespace sluice::test::offload_test
