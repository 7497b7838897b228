#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/cost_model.h"
#include "apps/train/memory_plan.h"

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

/// A way to run that fits.
struct Plan {
  MemoryChoice choice;
  MemoryPlan memory;
  StepTime time;
};

struct Planned {
  Plan chosen;
  /// Others that fit, fastest first: what the user could ask for instead.
  std::vector<Plan> others{};
};

/// The fastest way, by the cost model, that fits the budgets and keeps what flags have fixed. State
/// that would be rounded (bf16m and below, gradients summed in bf16) is taken only where nothing
/// exact fits. Throws Error (usage) when nothing fits: what is too large by how many bytes, and the
/// nearest that would fit.
Planned plan_run(const TrainOptions& options, const RunSetup& setup, const DeviceProfile& profile);

}  // namespace sluice
