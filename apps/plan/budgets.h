#pragma once

#include <cstddef>
#include <string>

#include "apps/config/train_config.h"
#include "apps/plan/cost/device_profile.h"
#include "apps/plan/state_memory.h"

namespace sluice {

/// Memory budgets in bytes: what the user allows (else what the machine has), and the reserves for
/// the driver, NCCL and the process, which come on top of the planned bytes. On the CPU all memory
/// counts as the device's, and the host fields stay 0.
struct Budgets {
  std::size_t device_allowed = 0, host_allowed = 0;
  std::size_t device_reserve = 0, host_reserve = 0;
  std::size_t communication = 0;  ///< the part of device_reserve that is for NCCL

  /// Return the bytes by which a plan and the reserve exceed what is allowed.
  std::size_t device_excess(std::size_t planned) const {
    return beyond(planned + device_reserve, device_allowed);
  }
  std::size_t host_excess(std::size_t planned) const {
    return beyond(planned + host_reserve, host_allowed);
  }
  std::size_t excess(const MemoryBytes& planned) const {
    return device_excess(planned.device) + host_excess(planned.host);
  }

 private:
  static std::size_t beyond(std::size_t needed, std::size_t allowed) {
    return needed > allowed ? needed - allowed : 0;
  }
};

Budgets budgets_of(const MemoryConfig& memory, const ParallelConfig& parallel,
                   const DeviceProfile& profile);

/// Names what a device's memory has to hold besides the plan: " and 654311424 for the driver"; ""
/// if it is nothing.
std::string text_of_reserve(const Budgets& budgets, const DeviceProfile& profile);

/// Throws Error (usage) if a budget exceeds what `profile` has. `gpu_place`: whose GPU it is,
/// for messages.
void require_budgets(const MemoryConfig& memory, const DeviceProfile& profile,
                     const std::string& gpu_place = "this machine");

}  // namespace sluice
