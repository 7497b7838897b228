#include "apps/train/pass_graphs.h"

#include <limits>
#include <optional>
#include <span>

#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gpu/watched_runtime.h"
#include "tests/support/program.h"
#include "tests/support/training/training.h"

// Passes that are launched as graphs give the bits of passes whose kernels are launched one by one.

namespace sluice::test::pass_graphs_test {
namespace {

struct Run {
  explicit Run(const TrainingTask& task, std::int64_t micro_batch, std::uint64_t seed = 1) {
    auto gpu = std::make_unique<WatchedRuntime>(seed);
    watched = gpu.get();
    run.emplace(task, task.resident(StateLayout::fp32, micro_batch),
                std::make_shared<DeviceContext>(std::move(gpu), std::size_t{64} << 20));
  }
  std::size_t launches_of_step() {
    const std::size_t before = watched->launches();
    run->step();
    return watched->launches() - before;
  }

  const WatchedRuntime* watched = nullptr;
  std::optional<TrainingRun> run;
};

/// Kernels of the gradient's norm and of the update, which are launched one by one.
constexpr std::size_t update_launches = 6;

}  // namespace

TEST_CASE("training with graphs has the bits of training without, and fewer launches",
          "[step][graphs]") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t micro_batch : {6, 3, 2, 1}) {
      if (!in_form(2, {static_cast<int>(dtype), micro_batch / 2})) continue;
      CAPTURE(name_of(dtype), micro_batch);
      TrainingTask task{.dtype = dtype, .batch_size = 6, .grad_clip = 1};
      Run plain(task, micro_batch);
      task.cuda_graph = true;
      Run graphs(task, micro_batch, 2);
      const RunBits expected = plain.run->train(7), seen = graphs.run->train(7);
      CHECK(first_difference(expected, seen) == "");
      // Two passes of each micro-batch.
      const auto passes = static_cast<std::size_t>(2 * 6 / micro_batch);
      CHECK(graphs.launches_of_step() <= passes + update_launches);
      CHECK(plain.launches_of_step() > 10 * passes);
    }
}

TEST_CASE("graphs are recorded anew where memory or the loss scale has changed", "[step][graphs]") {
  if (!have_gpu()) return;
  const auto train = [](bool with_graphs) {
    const TrainingTask task{
        .dtype = DType::f16, .batch_size = 2, .grad_clip = 1, .cuda_graph = with_graphs};
    Run run(task, 2);
    run.run->train(4);
    // Takes what the passes used and leaves it full of NaN.
    const Tensor held = Tensor::empty(run.run->device(), {1 << 16}, DType::f32);
    const std::vector<float> nan(1 << 16, std::numeric_limits<float>::quiet_NaN());
    held.copy_bytes_from(std::as_bytes(std::span(nan)));
    run.run->train(3);
    LossScaler& scaler = run.run->training().trainer.scaler();
    scaler = LossScaler({.scale = scaler.scale() / 4});
    const RunBits bits = run.run->train(3);
    CHECK(held.to_host().front() != held.to_host().front());
    return bits;
  };
  CHECK(first_difference(train(false), train(true)) == "");
}

TEST_CASE("a step with graphs whose gradients are not finite is diagnosed as without",
          "[step][graphs]") {
  if (!have_gpu()) return;
  const auto reason = [](bool with_graphs) {
    const TrainingTask task{.batch_size = 2, .grad_clip = 1, .cuda_graph = with_graphs};
    Run run(task, 2);
    run.run->train(4);
    run.run->set_weight("h.1.ln_2.weight", 5, std::numeric_limits<float>::max());
    const TrainStep step = run.run->step();
    CHECK(!step.applied);
    return step.reason;
  };
  CHECK_THAT(reason(true), Contains("first seen in"));
  CHECK(reason(true) == reason(false));
}

TEST_CASE("a pass that fails while it is recorded leaves a stream that works", "[graphs]") {
  if (!have_gpu()) return;
  const DevicePtr device = open_gpu(1);
  const Tensor number = Tensor::from_host(device, {1}, DType::f32, std::vector<double>{3});
  PassGraphs graphs(device, DType::f32);
  const auto keep = [&] { graphs.keep_loss(number); };
  const PassGraphs::Inputs inputs{.tokens = number.view().address};
  graphs.choose(inputs);
  graphs.run(keep);
  CHECK(graphs.loss().item() == 3);
  number.fill_zero();
  graphs.choose(inputs);
  CHECK_THROWS_WITH(graphs.run([&] {
    keep();
    fail("out of memory");
  }),
                    Contains("out of memory"));
  CHECK(graphs.loss().item() == 3);
  // The second pass fails where the first one has been recorded.
  graphs.choose(inputs);
  graphs.run(keep);
  CHECK_THROWS_WITH(graphs.run([] { fail("out of memory"); }), Contains("out of memory"));
  for (const float value : {5.0f, 7.0f}) {
    number.copy_bytes_from(std::as_bytes(std::span(&value, 1)));
    graphs.choose(inputs);
    graphs.run(keep);
    CHECK(graphs.loss().item() == value);
    graphs.run(keep);
  }
}

TEST_CASE("the flag --cuda-graph is refused where passes cannot be repeated, and plans keep to it",
          "[graphs]") {
  const auto plan = [](const std::string& flags) {
    return run_program(
        "plan", words("--device-profile 3090 --model gpt2 --batch-size 8 --cuda-graph " + flags));
  };
  const auto refusal = [&](const std::string& flags) {
    const ProgramResult result = plan(flags);
    CHECK(result.exit_code == 2);
    return result.err;
  };
  CHECK_THAT(refusal("--dropout 0.1"), Contains("--cuda-graph would draw the same numbers"));
  CHECK_THAT(refusal("--dp 2"), Contains("--cuda-graph is for one rank"));
  CHECK_THAT(refusal("--pp 2"), Contains("--cuda-graph is for one rank"));
  CHECK_THAT(refusal("--tp 2"), Contains("--cuda-graph is for one rank"));
  CHECK_THAT(refusal("--placement offload-state"), Contains("and --placement is offload-state"));
  CHECK_THAT(refusal("--placement auto:block+host"),
             Contains("with --cuda-graph inputs stay on the GPU"));
  CHECK_THAT(refusal("--scaling"), Contains("--cuda-graph is for one rank"));
  CHECK_THAT(refusal("--gpus 4"), Contains("--gpus looks at many ranks; --cuda-graph is for one"));
  CHECK(plan("--placement resident").exit_code == 0);

  // Without the flag this memory is enough for state in host memory.
  const std::string small =
      "--device-profile 3090 --model gpt2-large --gpu-memory 8GiB --batch-size 8";
  CHECK_THAT(run_well("plan", words(small)), Contains("streaming"));
  CHECK_THAT(run_well("plan", words(small + " --cuda-graph")), !Contains("streaming"));
}

}  // namespace sluice::test::pass_graphs_test
