#pragma once

#include <cstddef>

#include "apps/train/device_profile.h"
#include "apps/train/options.h"

namespace sluice {

/// What the user allows or the machine has, and how much of it driver and process take beside what
/// is planned, in bytes. Where the device is the host, there is nothing of the host's.
struct Budgets {
  std::size_t device_allowed = 0, host_allowed = 0;
  std::size_t device_reserve = 0, host_reserve = 0;
};

Budgets budgets_of(const TrainOptions& options, const DeviceProfile& profile);

/// Refuses (usage) budgets above what the machine of `profile`, at hand, has.
void require_budgets(const TrainOptions& options, const DeviceProfile& profile);

}  // namespace sluice
