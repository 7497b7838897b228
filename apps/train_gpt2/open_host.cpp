#include "apps/train_gpt2/open_host.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "apps/cli/progress.h"

namespace sluice {
namespace {

/// Describes the failed pinning, with the memlock limit if that is a cause of it.
std::string refusal(std::size_t bytes) {
  rlimit limit{};
  const bool limited =
      getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < bytes;  // "unlimited" is large
  return fmt::format(
      "the system refused to pin {} of host memory{}", format_bytes(bytes),
      limited ? fmt::format(" (ulimit -l: {})", format_bytes(limit.rlim_cur)) : std::string());
}

bool any(Communicator& ranks, bool here) {
  return std::ranges::count(ranks.gather_values(here ? 1 : 0, "pinned memory"), 1) > 0;
}

HostMemory reserve(const DevicePtr& device, const MemoryPlan& plan) {
  return make_host_memory(device, plan.pinned, plan.host - plan.pinned);
}

}  // namespace

HostMemory open_host(const TrainOptions& options, const RunSetup& setup, Communicator& ranks,
                     const DevicePtr& device, Plan& plan) {
  HostMemory host = reserve(device, plan.memory);
  bool refused = any(ranks, host.unpinned);
  if (!refused) return host;
  const std::string warning = refusal(plan.memory.pinned);
  const std::size_t allowed = plan.memory.host + plan.host_left;
  const std::int64_t away = setup.config.n_layer - plan.choice.resident_blocks;
  const bool speculated = plan.choice.speculative_blocks > 0;
  std::int64_t visiting = options.cpu_blocks ? 0 : away - plan.choice.cpu_blocks;
  while (refused && (visiting > 0 || plan.choice.speculative_blocks > 0)) {
    Plan other = plan;
    // Drops the second copy of state that visits the GPU first, then halves that state.
    if (plan.choice.speculative_blocks == 0) {
      visiting /= 2;
      other.choice.cpu_blocks = away - visiting;
    }
    other.choice.speculative_blocks = 0;
    other.memory = plan_memory(options, setup, other.choice, device->runtime().workspace_bytes(),
                               {planned_mesh(options), ranks.rank()});
    // The CPU's share needs places in host memory where gradients arrive and weights leave.
    if (any(ranks, other.memory.host > allowed)) break;
    host = {};
    host = reserve(device, other.memory);
    refused = any(ranks, host.unpinned);
    plan = std::move(other);
  }
  std::string text = warning;
  if (speculated && plan.choice.speculative_blocks == 0)
    text += "; no update begins under the backward pass";
  if (!options.cpu_blocks && plan.choice.cpu_blocks > 0)
    text += fmt::format("; the CPU updates the state of {} of {} blocks where it rests",
                        plan.choice.cpu_blocks, away);
  if (refused) text += "; copies from and to it will make the host wait";
  say_warning(text);
  return host;
}

}  // namespace sluice
