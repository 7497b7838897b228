#include <fmt/format.h>

#include <mutex>
#include <optional>

#include "apps/plan/cost/weight_streaming.h"
#include "apps/plan/memory_plan.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gpu/forwarding_runtime.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/training/pipelines.h"

// Layer-major training: each layer serves all micro-batches before the next one. Inputs, weights
// and gradients of layers rest in host memory, with the bits of a run that keeps them on the
// device.

namespace sluice::test::layer_major_test {
namespace {

TrainingTask task_of(DType dtype) {
  return {.config = {.n_layer = 5, .n_head = 2, .n_embd = 64, .vocab_size = 64, .n_positions = 16},
          .dtype = dtype,
          .batch_size = 4,
          .seq_len = 8,
          .grad_clip = 1.5,
          .pipeline = "layer-major",
          .stash = "auto"};
}

MemoryChoice resting(MemoryChoice choice, std::int64_t blocks, bool tables = false) {
  choice = with_weights_offloaded(choice, blocks, tables);
  if (tables) choice.staging.chunk = 3000;  // a table in two pieces, the last one shorter
  return choice;
}

/// Trains as the ranks of the task, and returns what each has afterwards.
std::vector<RunBits> train_each(const TrainingTask& task, const MemoryChoice& choice) {
  std::vector<RunBits> made(static_cast<std::size_t>(task.options().parallel.mesh().size()));
  on_mesh(task, choice, DeviceKind::cuda, [&](const Ranks& ranks, const DevicePtr& device) {
    TrainingRun run(task, choice, device, {}, ranks);
    for (int step = 0; step < 4; ++step)
      run.step();
    run.training().require_equal_copies("at the end");
    made[static_cast<std::size_t>(ranks.rank())] = bits_by_name(run);
  });
  return made;
}

/// A GPU on which what is copied to the host in pieces of `bytes` is NaN on the device afterwards.
class PoisoningRuntime final : public ForwardingRuntime {
 public:
  PoisoningRuntime(std::uint64_t seed, std::size_t bytes)
      : ForwardingRuntime(seed), poison_(bytes, std::byte{0xFF}) {}

  void copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes, Stream s) override {
    ForwardingRuntime::copy_to_host(to, from, bytes, s);
    if (bytes != poison_.size()) return;
    ++poisoned;
    ForwardingRuntime::copy_from_host(
        const_cast<std::byte*>(from),  // NOLINT: the memory is the device's
        poison_.data(), bytes, s);
  }

  int poisoned = 0;

 private:
  std::vector<std::byte> poison_;
};

}  // namespace

TEST_CASE("layer-major training has the bits of gpipe", "[layer_major]") {
  for (const DeviceKind kind : device_kinds())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      TrainingTask task = task_of(dtype);
      const auto train = [&](std::uint64_t seed) {
        const auto device =
            kind == DeviceKind::cuda ? open_gpu(seed) : make_cpu_device(std::size_t{64} << 20);
        constexpr std::size_t plenty = std::size_t{16} << 20;
        TrainingRun run(task, task.resident(), device, make_host_memory(device, plenty),
                        planned_ranks({}, 0));
        const RunBits bits = run.train(4);
        const bool rests = kind == DeviceKind::cuda && task.pipeline == "layer-major";
        // Each of the four inputs of every stage but the first.
        const std::uint64_t bytes = 4 * 4 * 8 * 64 * size_of(dtype);
        CHECK(run.steps().back().report.moved.to_host == (rests ? bytes : 0));
        return bits;
      };
      task.pipeline = "gpipe";
      const RunBits expected = train(1);
      task.pipeline = "layer-major";
      for (std::uint64_t seed = 1; seed <= (kind == DeviceKind::cuda ? by_form(3u, 10u) : 1u);
           ++seed) {
        CAPTURE(name_of(kind), name_of(dtype), seed);
        CHECK(first_difference(train(seed), expected) == "");
      }
    }
}

TEST_CASE("weights that rest in host memory change no bit of training", "[layer_major]") {
  if (!have_gpu()) return;
  struct Form {
    DType dtype;
    StateLayout layout;
    bool narrow = false;  ///< gradients in bf16
  };
  constexpr Form forms[] = {
      {DType::f32, StateLayout::fp32},         {DType::f16, StateLayout::fp32},
      {DType::bf16, StateLayout::fp32},        {DType::bf16, StateLayout::split},
      {DType::bf16, StateLayout::split, true}, {DType::bf16, StateLayout::bf16m}};
  for (std::int64_t form = 0; form < 6; ++form)
    // A single micro-batch computes little between two uses of a place.
    for (const std::int64_t micro_batches : {1, 4}) {
      const auto& [dtype, layout, narrow] = forms[form];
      TrainingTask task = task_of(dtype);
      task.batch_size = micro_batches;
      const auto train = [&](MemoryChoice choice, std::uint64_t seed) {
        choice.narrow_gradients = narrow;
        return TrainingRun(task, choice, open_gpu(seed), {}, planned_ranks({}, 0)).train(4);
      };
      std::optional<RunBits> expected;
      for (const std::int64_t blocks : {5, 4, 1})
        for (std::int64_t seed = 1; seed <= by_form(4, 10); ++seed) {
          if (!in_form(12, {form, 3 * micro_batches, 2 * blocks, 3 * seed})) continue;
          if (!expected) expected = train(task.resident(layout), 1);
          const bool tables = (blocks + seed) % 2 == 0;
          CAPTURE(name_of(dtype), name_of(layout), narrow, micro_batches, blocks, seed, tables);
          CHECK(first_difference(train(resting(task.resident(layout), blocks, tables),
                                       static_cast<std::uint64_t>(seed)),
                                 *expected) == "");
        }
    }
}

TEST_CASE("gradients that were copied to the host are not read on the device", "[layer_major]") {
  if (!have_gpu()) return;
  const TrainingTask task = task_of(DType::f32);
  const auto train = [&](const MemoryChoice& choice, const DevicePtr& device) {
    return TrainingRun(task, choice, device, {}, planned_ranks({}, 0)).train(4);
  };
  const MemoryChoice all = task.resident();
  const RunBits expected = train(all, open_gpu(1));
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const auto gradients = static_cast<std::size_t>(task.config.block_matrices()) * 4;
    auto runtime = std::make_unique<PoisoningRuntime>(seed, gradients);
    const PoisoningRuntime& poisoning = *runtime;
    const auto device = std::make_shared<DeviceContext>(std::move(runtime), std::size_t{64} << 20);
    CAPTURE(seed);
    CHECK(first_difference(train(resting(all, 5), device), expected) == "");
    CHECK(poisoning.poisoned == 4 * 5);
  }
}

TEST_CASE("ranks sum gradients before these rest in host memory", "[layer_major][ranks]") {
  if (!have_gpu()) return;
  struct Form {
    std::int64_t dp, tp, micro_batches, blocks;
    bool narrow = false, tables = false;
  };
  for (const auto& [dp, tp, micro_batches, blocks, narrow, tables] : {Form{2, 1, 1, 5, false, true},
                                                                      {2, 1, 3, 4},
                                                                      {3, 1, 2, 5, true},
                                                                      {1, 2, 2, 5},
                                                                      {2, 2, 1, 3, false, true}}) {
    CAPTURE(dp, tp, micro_batches, blocks, narrow, tables);
    TrainingTask task = task_of(DType::bf16);
    task.dp = dp;
    task.tp = tp;
    task.batch_size = dp * micro_batches;
    MemoryChoice all = task.resident(StateLayout::split);
    all.narrow_gradients = narrow;
    const std::vector<RunBits> expected = train_each(task, all);
    for (const std::string bucket_size : {"16KiB", "1MiB"}) {
      CAPTURE(bucket_size);
      task.bucket_size = bucket_size;
      const std::vector<RunBits> made = train_each(task, resting(all, blocks, tables));
      REQUIRE(made.size() == expected.size());
      for (std::size_t rank = 0; rank < made.size(); ++rank)
        CHECK(first_difference(made[rank], expected[rank]) == "");
    }
  }
}

TEST_CASE("the memory of replicas whose weights rest on the host is planned to the byte",
          "[layer_major][ranks][plan][threads]") {
  if (!have_gpu()) return;
  TrainingTask task = task_of(DType::bf16);
  task.dp = 2;
  const MemoryChoice choice = resting(task.resident(StateLayout::split), 4, true);
  const RunSetup setup = task.setup(DeviceKind::cuda, choice);
  std::vector<std::string> wrong;
  std::mutex mutex;
  on_mesh(task, choice, DeviceKind::cuda, [&](const Ranks& ranks, const DevicePtr& device) {
    const std::size_t before = device->arena().in_use();  // buffers for messages
    TrainingRun run(task, choice, device, {}, ranks);
    for (int step = 0; step < 2; ++step)
      run.step();
    const std::lock_guard lock(mutex);
    const MemoryPlan plan =
        plan_memory(task.options(), setup, choice, 0, {ranks.mesh, ranks.rank()});
    const std::size_t used = device->arena().peak() - before;
    const std::size_t host =
        run.host().pinned->arena().peak() + run.host().ordinary->arena().peak();
    if (plan.peak != used || plan.host != host)
      wrong.push_back(
          fmt::format("{} and {} bytes, not {} and {}", used, host, plan.peak, plan.host));
  });
  CHECK(wrong == std::vector<std::string>());
}

TEST_CASE("a step copies the bytes that are predicted", "[layer_major]") {
  if (!have_gpu()) return;
  TrainingTask task = task_of(DType::bf16);
  for (const std::int64_t blocks : {1, 2, 3, 5}) {
    // A model without a table of positions, which would be too small to leave the device.
    const bool tables = blocks > 2;
    if (tables) task.config = small_model("llama-3.2-1b", 5);
    task.config.tied = blocks != 5;
    const MemoryChoice choice = resting(task.resident(StateLayout::split), blocks, tables);
    TrainingRun run(task, choice, open_gpu(1), {}, planned_ranks({}, 0));
    run.train(3);
    const double input = 8 * 64 * 2;  // of one sequence, in each of the stages but the first
    const double inputs = 4 * 4 * input;
    const WeightStreaming predicted = predict_weight_streaming(
        task.config, choice, {.batch = 4, .seq_len = 8, .dtype = DType::bf16},
        {.kept = inputs, .resting = inputs}, known_profile("3090"));
    const StreamedBytes& moved = run.steps().back().report.moved;
    CAPTURE(blocks, tables);
    CHECK(static_cast<double>(moved.to_host) == predicted.to_host);
    // The last stage's last input comes back before it has left.
    CHECK(static_cast<double>(moved.to_device) == predicted.to_device - input);
  }
}

TEST_CASE("every family's weights may rest in host memory", "[layer_major]") {
  if (!have_gpu()) return;
  const std::int64_t steps = by_form(3, 20);
  for (const char* const name : {"gpt2", "gptj-6b", "llama-3.2-1b", "qwen3-0.6b", "pythia-160m"}) {
    TrainingTask task = task_of(DType::bf16);
    if (std::string_view(name) != "gpt2") task.config = small_model(name, 4);
    const MemoryChoice all = task.resident(StateLayout::split);
    std::vector<double> norms;
    const auto train = [&](const MemoryChoice& choice, std::uint64_t seed) {
      TrainingRun run(task, choice, open_gpu(seed), {}, planned_ranks({}, 0));
      const RunBits bits = run.train(steps);
      norms.clear();
      for (const TrainStep& step : run.steps())
        norms.push_back(step.gradient_norm);
      return bits;
    };
    // About half of the steps clip.
    task.grad_clip = 1e9;
    train(all, 1);
    std::ranges::sort(norms);
    task.grad_clip = norms[norms.size() / 2];
    const RunBits expected = train(all, 1);
    const auto clipped =
        std::ranges::count_if(norms, [&](double norm) { return norm > task.grad_clip; });
    CAPTURE(name, task.grad_clip, clipped);
    CHECK((clipped > 0 && clipped < steps));
    CHECK(first_difference(train(resting(all, 4), 2), expected) == "");
    CHECK(first_difference(train(resting(all, 4, true), 3), expected) == "");
  }
}

}  // namespace sluice::test::layer_major_test
