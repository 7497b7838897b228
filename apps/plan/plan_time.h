#pragma once

#include "apps/config/train_config.h"
#include "apps/plan/cost/cost_model.h"
#include "apps/plan/state_memory.h"
#include "apps/train/setup.h"

namespace sluice {

/// Predicts a step of one rank, without a pipeline, of which `state` was counted.
StepTime time_of(const TrainConfig& options, const RunSetup& setup, const DeviceProfile& profile,
                 const MemoryChoice& choice, const StateMemory& state);

}  // namespace sluice
