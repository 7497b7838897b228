#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/budgets.h"
#include "apps/train/cost_model.h"
#include "apps/train/memory_plan.h"

namespace sluice {

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
