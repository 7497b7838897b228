#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/plan/budgets.h"
#include "apps/plan/cost/cost_model.h"
#include "apps/plan/memory_plan.h"

namespace sluice {

/// A memory choice that fits the budgets, with its memory and its predicted time.
struct Plan {
  MemoryChoice choice;
  MemoryPlan memory;
  StepTime time;
  std::size_t host_left = 0;  ///< bytes of the host budget left unused
  std::size_t files = 0;      ///< bytes of state in the files of all ranks; plan_here() sets it
};

struct Planned {
  Plan chosen;
  /// Alternatives that fit, fastest first: what the user could ask for instead.
  std::vector<Plan> others{};
};

/// Returns the fastest choice, by the cost model, that fits the budgets and keeps the values that
/// flags fix. Rounded state (bf16m, bf16mv, int8, gradients summed in bf16) is used only if no
/// exact state fits. Throws Error (usage) if nothing fits; the message names what is too large, by
/// how many bytes, and the choice that comes nearest to fitting.
Planned plan_run(const TrainConfig& options, const RunSetup& setup, const DeviceProfile& profile);

/// Result of try_plan: the plan, or the choice that came nearest to fitting.
struct Attempt {
  std::optional<Plan> plan{};
  MemoryChoice nearest{};
  std::size_t excess = 0;  ///< bytes by which `nearest` exceeds the budgets, estimated or counted
};

/// Returns the choice that plan_run would make if it had to fit on each of these ranks of the mesh.
/// The memory is that of the rank that needs most. Does not throw if nothing fits.
Attempt try_plan(const TrainConfig& options, const RunSetup& setup, const DeviceProfile& profile,
                 std::span<const int> ranks);

}  // namespace sluice
