#include "apps/train_gpt2/run_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gpu/unpinned_runtime.h"
#include "tests/support/process/redirected.h"
#include "tests/support/training/training.h"

// If the system pins little memory, the CPU updates state that cannot visit the GPU: less and less
// state visits the GPU, until what must be pinned is. The training has the same bits.

namespace sluice::test::open_host_test {
namespace {

const std::int64_t steps = by_form(2, 5);

struct Opened {
  std::int64_t cpu_blocks;
  bool unpinned;
  RunBits bits;
};

/// Opens the host memory of a run whose system pins less than `limit` bytes at a time, with so many
/// bytes of its host's budget left, and trains in it.
Opened open_and_train(std::size_t limit, std::size_t host_left,
                      std::optional<std::int64_t> wish = {}) {
  const TrainingTask task{.dtype = DType::bf16, .seq_len = 8, .grad_clip = 1.5};
  const auto device = std::make_shared<DeviceContext>(std::make_unique<UnpinnedRuntime>(1, limit),
                                                      std::size_t{64} << 20);
  const RunSetup setup = task.setup(DeviceKind::cuda);
  TrainConfig options = task.options();
  options.memory.placement = wish ? "offload-state" : "auto:none";
  const std::size_t workspace = device->runtime().workspace_bytes();
  Plan plan;
  plan.choice = offloaded(task.resident(StateLayout::split), 0, 3000, 2, wish.value_or(0));
  plan.memory = plan_memory(options, setup, plan.choice, workspace);
  plan.host_left = host_left;
  const HostMemory host = open_host(options, setup, *single_rank().control, device, plan);
  // The reported memory is still true.
  CHECK(plan.memory.host == plan_memory(options, setup, plan.choice, workspace).host);
  TrainingRun run(task, plan.choice, device, host);
  return {plan.choice.count(Residency::cpu), host.unpinned, run.train(steps)};
}

}  // namespace

TEST_CASE("of what the system does not pin the CPU updates as much as it must", "[offload]") {
  if (!have_gpu()) return;
  const TrainingTask task{.dtype = DType::bf16, .seq_len = 8, .grad_clip = 1.5};
  const RunBits expected =
      TrainingRun(task, task.resident(StateLayout::split), open_gpu(1)).train(steps);
  // Three blocks of 49152 parameters in 10 bytes; two staging buffers of 3000 parameters, in 6.
  constexpr std::size_t block = 491520, staging = 36864, plenty = std::size_t{1} << 20;
  struct Row {
    std::size_t limit, left;
    std::optional<std::int64_t> wish;
    std::int64_t cpu_blocks;
    bool unpinned;
  };
  for (const auto& [limit, left, wish, cpu_blocks, unpinned] :
       {Row{4 * block, plenty, {}, 0, false},
        {2 * block, plenty, {}, 2, false},
        {block / 2, plenty, {}, 3, false},
        {staging / 2, plenty, {}, 3, true},
        // There is no room for staging; the user wants it so.
        {2 * block, staging / 2, {}, 0, true},
        {2 * block, plenty, 0, 0, true},
        {3 * block, plenty, 1, 1, false},
        {2 * block, plenty, 1, 1, true}}) {
    CAPTURE(limit, left, wish.value_or(-1));
    const Opened opened = open_and_train(limit, left, wish);
    CHECK(opened.cpu_blocks == cpu_blocks);
    CHECK(opened.unpinned == unpinned);
    CHECK(first_difference(opened.bits, expected) == "");
  }
}

TEST_CASE("a refusal to pin names the shell's limit where that may be the cause", "[offload]") {
  if (!have_gpu()) return;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_MEMLOCK, &before) == 0);
  for (const rlim_t kib : {64, 4096}) {
    if (kib << 10 > before.rlim_max) continue;
    const rlimit limit{.rlim_cur = kib << 10, .rlim_max = before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    const std::string text =
        written_to(STDOUT_FILENO, [] { open_and_train(1000, std::size_t{1} << 20); });
    CHECK(::setrlimit(RLIMIT_MEMLOCK, &before) == 0);
    CHECK_THAT(text, Contains("refused to pin 1 MiB"));
    CHECK((text.find("(ulimit -l: 64 KiB)") != std::string::npos) == (kib == 64));
  }
}

}  // namespace sluice::test::open_host_test
