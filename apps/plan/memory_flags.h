#pragma once

#include <cstdint>
#include <optional>

#include "apps/config/train_config.h"
#include "apps/plan/cost/device_profile.h"
#include "apps/train/setup.h"
#include "models/decoder/placement.h"

namespace sluice {

// These functions interpret and check the flags that place data in GPU or host memory.

/// Returns what --placement asks for. Throws Error (usage).
PlacementRequest requested_placement(const TrainConfig& options, const RunSetup& setup);

/// Returns true if optimizer state may be offloaded.
bool can_offload_state(const TrainConfig& options, const DeviceProfile& profile);
/// Returns true if the planner may let the CPU update some of that state. False in a pipeline: the
/// CPU takes the highest blocks, which are all in the last stage, and that stage has the least time
/// to hide these updates.
bool can_share_cpu(const TrainConfig& options, const RunSetup& setup, const DeviceProfile& profile);
/// Returns true if the planner may offload weights and gradients of blocks.
bool can_offload_weights(const TrainConfig& options, const RunSetup& setup,
                         const DeviceProfile& profile);
/// Returns true if block inputs may be offloaded between forward and backward.
bool can_offload_inputs(const RunSetup& setup, const DeviceProfile& profile);

/// Returns true if a flag fixes a memory choice. without_memory_flags() resets all such flags.
bool fixes_memory(const TrainConfig& options);
TrainConfig without_memory_flags(TrainConfig options);

/// Throws Error (usage) naming the flag if it is not supported here or contradicts another flag.
void validate_memory_flags(const TrainConfig& options, const RunSetup& setup,
                           const DeviceProfile& profile);

}  // namespace sluice
