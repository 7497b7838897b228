#include "apps/train_gpt2/run_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "apps/cli/progress.h"
#include "apps/plan/continued_plan.h"
#include "apps/plan/memory_flags.h"
#include "engine/offload/file_memory.h"
#include "parallel/comm/agreement.h"

namespace sluice {
namespace {

/// Makes all ranks use rank 0's rates and the smallest memory. Ranks of one computer share its
/// memory. Returns whose GPU has least.
std::string agree(DeviceProfile& profile, Job& job) {
  if (job.size() == 1) return "this machine";
  const auto ranks = static_cast<std::size_t>(job.local_size());
  profile.host_memory /= ranks;
  profile.memory /= profile.gpu ? static_cast<std::size_t>(job.sharers_of_gpu()) : ranks;
  struct Figures {
    std::size_t memory, host_memory, communication;
    double wide, narrow, rate, to_device, to_host, host;
  };
  const auto all = job.control().gather_values(
      Figures{profile.memory, profile.host_memory, *profile.communication, profile.wide_flops,
              profile.narrow_flops, profile.memory_rate, profile.to_device_rate,
              profile.to_host_rate, profile.host_rate},
      "profiles");
  const auto least = std::ranges::min_element(all, {}, &Figures::memory);
  profile.memory = least->memory;
  profile.host_memory = std::ranges::min(all, {}, &Figures::host_memory).host_memory;
  profile.communication = std::ranges::max(all, {}, &Figures::communication).communication;
  profile.wide_flops = all[0].wide;
  profile.narrow_flops = all[0].narrow;
  profile.memory_rate = all[0].rate;
  profile.to_device_rate = all[0].to_device;
  profile.to_host_rate = all[0].to_host;
  profile.host_rate = all[0].host;
  const int sharers = job.sharers_of_gpu();
  return job.control().share_text(
      job.place() + (profile.gpu && sharers > 1 ? fmt::format(" for {} ranks", sharers) : ""),
      static_cast<int>(least - all.begin()), "place");
}

/// Describes the failed pinning, with the memlock limit if that may be the cause.
std::string refusal(std::size_t bytes) {
  rlimit limit{};
  const bool limited =
      getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < bytes;  // "unlimited" is large
  return fmt::format(
      "the system refused to pin {} of host memory{}", format_bytes(bytes),
      limited ? fmt::format(" (ulimit -l: {} KiB)", limit.rlim_cur >> 10) : std::string());
}

HostMemory reserve(const DevicePtr& device, const MemoryPlan& plan) {
  return make_host_memory(device, plan.pinned, plan.host - plan.pinned);
}

/// Returns null if no state rests in a file.
std::shared_ptr<FileMemory> open_file(const std::string& folder, const MemoryPlan& plan) {
  if (folder.empty()) return nullptr;
  try {
    // A folder that is not good is found even if the state fits into memory today.
    auto file = std::make_shared<FileMemory>(folder, plan.file);
    if (plan.file == 0) return nullptr;
    if (const std::string caution = file->caution(); !caution.empty())
      say_warning("--state-home: " + caution);
    return file;
  } catch (const Error& cause) {
    fail(fmt::format("--state-home: {}", cause.what()), cause.kind());
  }
}

}  // namespace

Plan plan_here(const TrainConfig& asked, RunSetup& setup, Resumption& found, Job& job,
               std::size_t communication) {
  DeviceProfile profile = profile_at_hand(setup.device, setup.precision, communication);
  const std::string least = agree(profile, job);
  require_budgets(asked.memory, profile, least);
  auto [planned, options, warning] = plan_continued(
      asked, setup, profile,
      found.checkpoint.empty() ? std::nullopt : recorded_choice(found.checkpoint, found.manifest));
  if (!warning.empty()) found.warn(warning);
  Plan& plan = planned.chosen;
  job.require_equal("memory plan", to_flags(plan.choice));
  // Ranks may hold different parts of the state or of the model; then counts this rank's memory.
  const bool alike =
      options.parallel.zero == 0 && !options.parallel.pipelined() && options.parallel.tp == 1;
  if (!alike)
    plan.memory =
        plan_memory(options, setup, plan.choice, profile.workspace, {job.mesh(), job.rank()});
  for (const std::size_t bytes : job.control().gather_values(plan.memory.file, "state files"))
    plan.files += bytes;
  if (alike) return plan;
  const Budgets budgets = budgets_of(options.memory, options.parallel, profile);
  const std::size_t here =
      budgets.device_excess(plan.memory.high_water) + budgets.host_excess(plan.memory.host);
  const auto all = job.control().gather_values(here, "memory");
  const auto most = std::ranges::max_element(all);
  if (*most > 0) {
    const auto rank = static_cast<int>(most - all.begin());
    fail(fmt::format("ranks have different parts of the model or of its state: {} needs {} bytes "
                     "more than allowed; give it more, or a smaller --micro-batch",
                     job.control().share_text(job.place(), rank, "place"), *most),
         ErrorKind::usage);
  }
  if (profile.gpu) plan.host_left = budgets.host_allowed - budgets.host_reserve - plan.memory.host;
  return plan;
}

std::size_t host_peak(const HostMemory& host) {
  std::size_t bytes = 0;
  for (const DevicePtr& memory : {host.pinned, host.ordinary})
    if (memory != nullptr) bytes += memory->arena().peak();
  return bytes;
}

std::size_t resident_peak() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

std::size_t driver_used(const DeviceContext& device) {
  if (device.device().kind != DeviceKind::cuda) return 0;
  const DeviceInfo info = device.runtime().info();
  return info.memory - info.free_memory;
}

HostMemory reserve_memory(const TrainConfig& options, const RunSetup& setup, Communicator& ranks,
                          const DevicePtr& device, Plan& plan) {
  device->reserve(plan.memory.high_water);
  HostMemory host = open_host(options, setup, ranks, device, plan);
  host.file = open_file(options.memory.state_home, plan.memory);
  return host;
}

HostMemory open_host(const TrainConfig& options, const RunSetup& setup, Communicator& ranks,
                     const DevicePtr& device, Plan& plan) {
  HostMemory host = reserve(device, plan.memory);
  bool refused = any_rank(ranks, host.unpinned, "pinned memory");
  if (!refused) return host;
  const std::string warning = refusal(plan.memory.pinned);
  const std::size_t allowed = plan.memory.host + plan.host_left;
  const bool asked = requested_placement(options, setup).residency.has_value();
  std::int64_t staged = asked ? 0 : plan.choice.streamed_blocks();
  while (refused && staged > 0) {
    Plan other = plan;
    // The CPU updates the higher half of the blocks whose state was pinned.
    staged /= 2;
    for (std::int64_t left = staged; Placement & block : other.choice.placement.blocks)
      if (block.residency == Residency::streamed && left-- <= 0) block.residency = Residency::cpu;
    other.memory = plan_memory(options, setup, other.choice, device->runtime().workspace_bytes(),
                               {options.parallel.mesh(), ranks.rank()});
    // Blocks that the CPU updates need staging buffers for gradients and weights in host memory.
    if (any_rank(ranks, other.memory.host > allowed, "pinned memory")) break;
    host = {};
    host = reserve(device, other.memory);
    refused = any_rank(ranks, host.unpinned, "pinned memory");
    plan = std::move(other);
  }
  std::string text = warning;
  const std::int64_t by_cpu = plan.choice.count(Residency::cpu);
  if (!asked && by_cpu > 0)
    text += fmt::format("; the CPU updates the state of {} of {} blocks", by_cpu,
                        by_cpu + plan.choice.streamed_blocks());
  if (refused)
    text += fmt::format("; {}copies from and to {} will make the host wait",
                        host.pinned_bytes > 0
                            ? fmt::format("it pinned {}, and ", format_bytes(host.pinned_bytes))
                            : "",
                        host.pinned_bytes > 0 ? "the rest" : "it");
  say_warning(text);
  return host;
}

}  // namespace sluice
