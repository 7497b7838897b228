#pragma once

#include <cstdint>
#include <optional>

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

/// Of the blocks whose state visits the GPU, how many at most are updated under the backward pass;
/// none: as many as save time. Throws Error (usage) where the flag says neither.
std::optional<std::int64_t> speculative_blocks(const TrainOptions& options);

/// Whether flags leave the planner less than everything to choose, and options that do not.
bool fixes_memory(const TrainOptions& options);
TrainOptions without_memory_flags(TrainOptions options);

/// Throws Error (usage), by the flag, where one of them cannot be had or contradicts another.
void require_memory_wishes(const TrainOptions& options, const RunSetup& setup,
                           const DeviceProfile& profile);

}  // namespace sluice
