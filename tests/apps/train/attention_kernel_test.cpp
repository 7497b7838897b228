#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/program.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/options.h"
#include "tests/support/training/training.h"

// --attention: which kernel computes a GPU's attention.

namespace sluice::test::attention_kernel_test {
namespace {

bool have_kernel() {
  if (!have_gpu()) return false;
  if (open_gpu(1)->runtime().info().wgmma_attention) return true;
  skip("this GPU has no attention by TMA and wgmma");
  return false;
}

std::vector<double> losses_of(bool wgmma) {
  TrainingTask task{.dtype = DType::bf16, .seq_len = 80};
  task.config.n_positions = 80;  // several tiles of keys
  const DevicePtr device = open_gpu(1);
  device->ask_for_wgmma_attention(wgmma);
  TrainingRun run(task, task.resident(StateLayout::split), device);
  run.train(3);
  std::vector<double> losses;
  for (const TrainStep& step : run.steps())
    losses.push_back(step.loss);
  return losses;
}

std::string refusal(const std::string& flags, bool gpu = true, int capability = 90) {
  return error_message([&] {
    resolve_shape(parsed("--n-layer 1 --n-head 2 --n-embd 16 --vocab-size 64 --context 16 "
                         "--batch-size 4 --attention tma " +
                         flags),
                  gpu, capability, "this card");
  });
}

}  // namespace

TEST_CASE("a model trains with either kernel of attention") {
  if (!have_kernel()) return;
  const std::vector<double> mma = losses_of(false), tma = losses_of(true);
  CHECK(mma != tma);  // sums have another order
  REQUIRE(mma.size() == tma.size());
  for (std::size_t step = 0; step < mma.size(); ++step)
    CHECK(tma[step] == Approx(mma[step]).epsilon(2e-3));
}

TEST_CASE("a run says which kernel of attention was asked for") {
  if (!have_kernel()) return;
  const TempDir dir;
  write_tokens(dir.path() / "t.bin", 200, 64);
  const auto said = [&](const std::string& output, const std::string& flags) {
    return run_well("train_gpt2",
                    words("--n-layer 1 --n-head 2 --n-embd 16 --vocab-size 64 --context 16 "
                          "--batch-size 1 --steps 1 --device cuda --precision bf16 --data " +
                          (dir.path() / "t.bin").string() + " --output " +
                          (dir.path() / output).string() + flags));
  };
  CHECK_THAT(said("tma", " --attention tma"), Contains("bf16, attention by tma, matrix products"));
  CHECK_THAT(said("mma", ""), Contains("bf16, matrix products"));
}

TEST_CASE("the kernel of --attention tma is refused where there is no such kernel") {
  CHECK(refusal("--precision bf16") == "(no error)");
  CHECK(refusal("--precision fp16") == "(no error)");
  CHECK_THAT(refusal("--precision bf16", true, 89), Contains("compute capability 9.0"));
  CHECK_THAT(refusal("--precision bf16", true, 100), Contains("compute capability 9.0"));
  CHECK_THAT(refusal("--precision bf16", false, 0), Contains("compute capability 9.0"));
  CHECK_THAT(refusal("--precision fp32"), Contains("the precision is fp32"));
  CHECK_THAT(refusal("--precision bf16 --dropout 0.1"), Contains("attention's is 0.1"));
  CHECK_THAT(refusal("--precision bf16 --n-head 4"), Contains("they are 4 wide"));
  CHECK_THAT(refusal("--precision bf16 --n-head 1 --n-embd 136"), Contains("they are 136 wide"));
  CHECK(refusal("--precision bf16 --n-head 1 --n-embd 128") == "(no error)");
}

}  // namespace sluice::test::attention_kernel_test
