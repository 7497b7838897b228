#pragma once

#include <cstddef>

#include "apps/train/device_profile.h"
#include "apps/train/options.h"

namespace sluice {

/// Bytes that a run may plan with: what the user allows or the machine has, less what the driver
/// and the process take beside it.
struct Budgets {
  std::size_t device_allowed = 0, host_allowed = 0;
  std::size_t device_reserve = 0, host_reserve = 0;  ///< taken off for driver and process

  std::size_t device() const { return left(device_allowed, device_reserve); }
  /// For state that rests there; 0 where the device is the host.
  std::size_t host() const { return left(host_allowed, host_reserve); }

 private:
  static std::size_t left(std::size_t allowed, std::size_t reserve) {
    return allowed > reserve ? allowed - reserve : 0;
  }
};

Budgets budgets_of(const TrainOptions& options, const DeviceProfile& profile);

/// Refuses (usage) budgets above what the machine of `profile`, at hand, has.
void require_budgets(const TrainOptions& options, const DeviceProfile& profile);

}  // namespace sluice
