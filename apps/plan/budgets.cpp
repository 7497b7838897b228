#include "apps/plan/budgets.h"

#include <fmt/format.h>

#include "apps/cli/progress.h"
#include "apps/cli/sizes.h"
#include "kernels/base/error.h"

namespace sluice {

Budgets budgets_of(const TrainOptions& o, const DeviceProfile& profile) {
  const std::size_t host =
      o.host_memory.value_or(profile.gpu ? profile.host_memory : profile.memory);
  if (!profile.gpu) {
    if (o.gpu_memory)
      fail(fmt::format("--gpu-memory {}: this run computes on the CPU; give --host-memory, or "
                       "--device cuda",
                       spell_bytes(*o.gpu_memory)),
           ErrorKind::usage);
    return {.device_allowed = host, .device_reserve = profile.process};
  }
  return {.device_allowed = o.gpu_memory.value_or(profile.memory),
          .host_allowed = host,
          .device_reserve = profile.context,
          .host_reserve = profile.process};
}

void require_budgets(const TrainOptions& o, const DeviceProfile& profile) {
  const auto require = [](const char* flag, std::optional<std::size_t> given, std::size_t there) {
    if (given.value_or(0) <= there) return;
    fail(fmt::format("{} {}: this machine has {} to give", flag, spell_bytes(*given),
                     format_bytes(there)),
         ErrorKind::usage);
  };
  if (profile.gpu) require("--gpu-memory", o.gpu_memory, profile.memory);
  require("--host-memory", o.host_memory, profile.host_memory);
}

}  // namespace sluice
