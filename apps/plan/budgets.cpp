#include "apps/plan/budgets.h"

#include <fmt/format.h>

#include "apps/cli/progress.h"
#include "apps/cli/sizes.h"
#include "kernels/base/error.h"

namespace sluice {

Budgets budgets_of(const TrainOptions& o, const DeviceProfile& profile) {
  const std::size_t host = o.host_memory.empty()
                               ? (profile.gpu ? profile.host_memory : profile.memory)
                               : parse_bytes("--host-memory", o.host_memory);
  if (!profile.gpu) {
    if (!o.gpu_memory.empty())
      fail(fmt::format("--gpu-memory {}: this run computes on the CPU; give --host-memory, or "
                       "--device cuda",
                       o.gpu_memory),
           ErrorKind::usage);
    return {.device_allowed = host, .device_reserve = profile.process};
  }
  const std::size_t card =
      o.gpu_memory.empty() ? profile.memory : parse_bytes("--gpu-memory", o.gpu_memory);
  return {.device_allowed = card,
          .host_allowed = host,
          .device_reserve = profile.context,
          .host_reserve = profile.process};
}

void require_budgets(const TrainOptions& o, const DeviceProfile& profile) {
  const auto require = [](const char* flag, const std::string& given, std::size_t there) {
    if (given.empty() || parse_bytes(flag, given) <= there) return;
    fail(fmt::format("{} {}: this machine has {} to give", flag, given, format_bytes(there)),
         ErrorKind::usage);
  };
  if (profile.gpu) require("--gpu-memory", o.gpu_memory, profile.memory);
  require("--host-memory", o.host_memory, profile.host_memory);
}

}  // namespace sluice
