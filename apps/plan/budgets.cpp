#include "apps/plan/budgets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "apps/cli/progress.h"
#include "apps/cli/sizes.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

/// GPU memory of NCCL, where no run has measured it: 1.0 GiB were reported for a group of 8 H100
/// and 1.5 GiB for another one (issues 1685 and 864 of NCCL). It depends on NCCL's version, the
/// GPUs and how they are connected.
constexpr std::size_t assumed_communication = std::size_t{1} << 30;

std::size_t communication_of(const ParallelConfig& parallel, const DeviceProfile& profile) {
  if (profile.communication) return *profile.communication;
  const bool emulated = profile.context == 0;
  const bool staged = parallel.communication == GpuExchange::staged;
  return emulated || staged || parallel.mesh().size() == 1 ? 0 : assumed_communication;
}

}  // namespace

Budgets budgets_of(const MemoryConfig& memory, const ParallelConfig& parallel,
                   const DeviceProfile& profile) {
  const std::size_t host = memory.host.value_or(profile.gpu ? profile.host_memory : profile.memory);
  if (!profile.gpu) {
    if (memory.gpu)
      fail(fmt::format("--gpu-memory {}: this run computes on the CPU; give --host-memory, or "
                       "--device cuda",
                       spell_bytes(*memory.gpu)),
           ErrorKind::usage);
    return {.device_allowed = host, .device_reserve = profile.process};
  }
  const std::size_t communication = communication_of(parallel, profile);
  return {.device_allowed = memory.gpu.value_or(profile.memory),
          .host_allowed = host,
          .device_reserve = profile.context + communication,
          .host_reserve = profile.process,
          .communication = communication};
}

std::string text_of_reserve(const Budgets& budgets, const DeviceProfile& profile) {
  if (budgets.device_reserve == 0) return {};
  std::vector<std::string_view> owners;
  if (!profile.gpu) owners.emplace_back("the process");
  if (profile.context > 0) owners.emplace_back("the driver");
  if (budgets.communication > 0) owners.emplace_back("NCCL");
  return fmt::format(" and {} for {}", budgets.device_reserve, fmt::join(owners, " and "));
}

void require_budgets(const MemoryConfig& memory, const DeviceProfile& profile,
                     const std::string& gpu_place) {
  const auto require = [](const char* flag, std::optional<std::size_t> given, std::size_t there,
                          const std::string& place) {
    if (given.value_or(0) <= there) return;
    fail(fmt::format("{} {}: {} has {} to give", flag, spell_bytes(*given), place,
                     format_bytes(there)),
         ErrorKind::usage);
  };
  if (profile.gpu) require("--gpu-memory", memory.gpu, profile.memory, gpu_place);
  require("--host-memory", memory.host, profile.host_memory, "this machine");
}

}  // namespace sluice
