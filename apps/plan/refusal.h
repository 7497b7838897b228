#pragma once

#include <string>

#include "apps/config/train_config.h"
#include "apps/plan/budgets.h"
#include "apps/plan/cost/device_profile.h"
#include "apps/plan/memory_plan.h"
#include "apps/train/memory_choice.h"
#include "apps/train/setup.h"

namespace sluice {

/// Throws Error (usage): nothing fits the budgets. It names the choice that comes nearest, what of
/// its memory is too large, by how much, and the budget that would do. `elsewhere`: flags of a plan
/// that fits if the planner may change what flags have fixed; "" if there is none.
[[noreturn]] void refuse_plan(const TrainConfig& options, const RunSetup& setup,
                              const MemoryChoice& nearest, const MemoryPlan& memory,
                              const Budgets& budgets, const DeviceProfile& profile,
                              const std::string& elsewhere);

}  // namespace sluice
