#pragma once

#include <cstddef>
#include <optional>
#include <span>
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
  std::size_t host_left = 0;  ///< bytes of the host's budget that it leaves
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

/// What came of it, and without a plan how near it was.
struct Attempt {
  std::optional<Plan> plan{};
  MemoryChoice nearest{};
  std::size_t excess = 0;  ///< bytes that the nearest has too many, by estimate or by count
};

/// The chosen one of plan_run, which fits all of some ranks of the mesh; its memory is that of the
/// one with most. Does not throw where nothing fits.
Attempt try_plan(const TrainOptions& options, const RunSetup& setup, const DeviceProfile& profile,
                 std::span<const int> ranks);

}  // namespace sluice
