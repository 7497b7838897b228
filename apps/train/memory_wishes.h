#pragma once

#include "apps/train/device_profile.h"
#include "apps/train/options.h"
#include "apps/train/setup.h"

namespace sluice {

// What flags may ask of memory beside the GPU's on a machine.

/// Optimizer state rests in host memory.
bool can_stream(const TrainOptions& options, const DeviceProfile& profile);
/// And the CPU updates some of it there without being told to: not in a pipeline, where all blocks
/// that it would take are the last stage's, which has the shortest way to hide them.
bool can_share_cpu(const TrainOptions& options, const RunSetup& setup,
                   const DeviceProfile& profile);
/// Inputs of blocks rest there between the passes.
bool can_rest_inputs(const RunSetup& setup, const DeviceProfile& profile);

/// Throws Error (usage), by the flag, where one of them cannot be had or contradicts another.
void require_memory_wishes(const TrainOptions& options, const RunSetup& setup,
                           const DeviceProfile& profile);

}  // namespace sluice
