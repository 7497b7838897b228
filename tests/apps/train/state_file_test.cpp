#include <memory>
#include <optional>

#include "apps/plan/memory_plan.h"
#include "engine/offload/file_memory.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/form.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/training.h"

// State in a file (--state-home) changes no bit of a training, and takes the planned bytes.

namespace sluice::test::state_file_test {
namespace {

constexpr std::size_t plenty = std::size_t{64} << 20;

/// The types of weights, gradients and state.
struct Numbers {
  DType dtype;
  StateLayout layout;
  bool narrow = false;  ///< gradients in bf16
};
constexpr Numbers numbers[] = {
    {DType::f32, StateLayout::fp32},   {DType::bf16, StateLayout::split, true},
    {DType::bf16, StateLayout::fp32},  {DType::bf16, StateLayout::int8},
    {DType::bf16, StateLayout::bf16m}, {DType::f16, StateLayout::fp32}};

/// The lowest blocks keep their state in memory; that of the others is in a file.
struct Offloading {
  std::int64_t resident, chunk;
  int places;
};
constexpr Offloading placements[] = {
    {0, std::int64_t{4} << 20, 4}, {1, 5000, 1}, {0, 3000, 2}, {2, 1600, 3}, {0, 9000, 64}};

TrainingTask task_of(const Numbers& given) {
  return {.dtype = given.dtype, .batch_size = 4, .seq_len = 8, .grad_clip = 2.4};
}

MemoryChoice choice_of(const TrainingTask& task, const Numbers& given, const Offloading& place) {
  MemoryChoice choice =
      offloaded(task.resident(given.layout, 2), place.resident, place.chunk, place.places);
  choice.narrow_gradients = given.narrow;
  return choice;
}

HostMemory with_file(HostMemory host, const TempDir& folder, std::uint64_t bytes = plenty) {
  host.file = std::make_shared<FileMemory>(folder.path(), bytes);
  return host;
}

/// Returns the memory that is planned for two updates.
MemoryPlan plan_of(const TrainingTask& task, const MemoryChoice& choice, DeviceKind kind,
                   std::size_t workspace, const TempDir& folder) {
  TrainConfig options = task.options();
  options.memory.state_home = folder.path().string();
  return plan_memory(options, task.setup(kind, choice), choice, workspace);
}

}  // namespace

TEST_CASE("state in a file changes no bit of training on the CPU", "[state_file][threads]") {
  std::int64_t clipped = 0, whole = 0, runs = 0;
  for (std::int64_t n = 0; n < 5; ++n) {
    const TrainingTask task = task_of(numbers[n]);
    MemoryChoice in_memory = task.resident(numbers[n].layout, 2);
    in_memory.narrow_gradients = numbers[n].narrow;
    TrainingRun reference(task, in_memory, make_cpu_device(plenty));
    const RunBits expected = reference.train(6);
    for (const TrainStep& step : reference.steps())
      ++(step.gradient_norm > task.grad_clip ? clipped : whole);
    for (std::int64_t p = 0; p < 5; ++p) {
      if (!in_form(5, {n, p})) continue;
      CAPTURE(name_of(task.dtype), name_of(numbers[n].layout), p);
      const TempDir folder;
      const MemoryChoice choice = choice_of(task, numbers[n], placements[p]);
      const MemoryPlan plan = plan_of(task, choice, DeviceKind::cpu, 0, folder);
      CHECK(plan.host == 0);
      const HostMemory host = with_file({}, folder, plan.file);
      TrainingRun run(task, choice, make_cpu_device(plan.high_water), host);
      CHECK(first_difference(run.train(6), expected) == "");
      CHECK(run.device()->arena().high_water() == plan.high_water);
      CHECK(host.file->allocated() == plan.file);
      // Each step reads and writes all of the file.
      const StreamedBytes& moved = run.steps().back().report.moved;
      CHECK(moved.from_file == plan.file);
      CHECK(moved.to_file == plan.file);
      ++runs;
    }
  }
  CHECK(clipped > 0);
  CHECK(whole > 0);
  CHECK(runs >= by_form(5, 25));
}

TEST_CASE("one byte less of a file than planned does not do", "[state_file]") {
  const TrainingTask task = task_of(numbers[1]);
  const MemoryChoice choice = choice_of(task, numbers[1], placements[1]);
  const TempDir folder;
  const MemoryPlan plan = plan_of(task, choice, DeviceKind::cpu, 0, folder);
  REQUIRE(plan.file > 0);
  const auto start = [&](std::uint64_t bytes) {
    TrainingRun(task, choice, make_cpu_device(plan.high_water), with_file({}, folder, bytes));
  };
  CHECK_NOTHROW(start(plan.file));
  CHECK_THAT(error_message([&] { start(plan.file - ScratchFile::alignment); }),
             Contains("more was allocated in a file than was planned"));
}

TEST_CASE("a step that is not finite leaves state in a file as it was", "[state_file]") {
  // In bf16 the file also holds the master weight of the element that is set, whose chunk has been
  // read ahead for the step that is skipped.
  const Numbers given = GENERATE(numbers[0], numbers[1]);
  const TrainingTask task = task_of(given);
  const auto train = [&](const MemoryChoice& choice, const HostMemory& host) {
    TrainingRun run(task, choice, make_cpu_device(plenty), host);
    run.train(2);
    run.set_weight("h.1.attn.c_attn.weight", 3, INFINITY);
    CHECK(!run.step().applied);
    run.set_weight("h.1.attn.c_attn.weight", 3, 0.3F);
    CHECK(run.step().applied);
    return run.train(2);
  };
  const TempDir folder;
  MemoryChoice resident = task.resident(given.layout, 2);
  resident.narrow_gradients = given.narrow;
  const RunBits expected = train(resident, {});
  CHECK(first_difference(train(offloaded(resident, 1, 3000, 2), with_file({}, folder)), expected) ==
        "");
}

TEST_CASE("state in a file changes no bit of training on a GPU", "[state_file]") {
  if (!have_gpu()) return;
  std::int64_t runs = 0;
  for (std::int64_t n = 0; n < 6; ++n) {
    const TrainingTask task = task_of(numbers[n]);
    MemoryChoice in_memory = task.resident(numbers[n].layout, 2);
    in_memory.narrow_gradients = numbers[n].narrow;
    std::optional<RunBits> expected;
    for (std::int64_t p = 0; p < 5; ++p) {
      if (!in_form(5, {n, p})) continue;
      CAPTURE(name_of(task.dtype), name_of(numbers[n].layout), p);
      if (!expected) expected = TrainingRun(task, in_memory, open_gpu(1)).train(4);
      const TempDir folder;
      MemoryChoice choice = choice_of(task, numbers[n], placements[p]);
      for (Placement& block : choice.placement.blocks)
        if (block.residency != Residency::device) block.residency = Residency::cpu;
      const DevicePtr device = open_gpu(static_cast<std::uint64_t>(p) + 2);
      const MemoryPlan plan =
          plan_of(task, choice, DeviceKind::cuda, device->runtime().workspace_bytes(), folder);
      const HostMemory host = with_file(
          make_host_memory(device, plan.pinned, plan.host - plan.pinned), folder, plan.file);
      TrainingRun run(task, choice, device, host);
      CHECK(first_difference(run.train(4), *expected) == "");
      CHECK(host.file->allocated() == plan.file);
      CHECK(host.ordinary->arena().high_water() == plan.host - plan.pinned);
      CHECK(run.steps().back().report.moved.to_file == plan.file);
      ++runs;
    }
  }
  CHECK(runs >= by_form(6, 30));
}

TEST_CASE("weights in host memory and their state in a file change no bit", "[state_file]") {
  if (!have_gpu()) return;
  for (const Numbers& given : {numbers[0], numbers[1]}) {
    TrainingTask task = task_of(given);
    task.pipeline = "layer-major";
    task.stash = "auto";
    MemoryChoice choice = task.resident(given.layout, 1);
    choice.narrow_gradients = given.narrow;
    const RunBits expected =
        TrainingRun(task, choice, open_gpu(1), {}, planned_ranks({}, 0)).train(4);
    for (const std::int64_t blocks : {1, 3}) {
      CAPTURE(name_of(given.dtype), blocks);
      const TempDir folder;
      MemoryChoice resting = with_weights_offloaded(choice, blocks, blocks == 3);
      resting.staging.chunk = 3000;
      const DevicePtr device = open_gpu(static_cast<std::uint64_t>(blocks) + 4);
      TrainingRun run(task, resting, device,
                      with_file(make_host_memory(device, plenty, plenty), folder),
                      planned_ranks({}, 0));
      CHECK(first_difference(run.train(4), expected) == "");
      CHECK(run.steps().back().report.moved.to_file > 0);
    }
  }
}

}  // namespace sluice::test::state_file_test
