#pragma once

#include <string>
#include <vector>

#include "apps/config/train_config.h"
#include "apps/plan/cost/device_profile.h"
#include "apps/train/memory_choice.h"
#include "apps/train/setup.h"

namespace sluice {

/// Says what a shape or a batch wastes of a GPU, and which would not, a sentence each.
std::vector<std::string> plan_advice(const TrainConfig& options, const RunSetup& setup,
                                     const DeviceProfile& profile, const MemoryChoice& choice);

/// Returns a sentence about a learning rate that is accepted but unusual for the optimizer; "" if
/// it is usual.
std::string unusual_rate(const TrainConfig& options, double rate);

}  // namespace sluice
