#pragma once

#include "apps/train/job.h"
#include "apps/train/planner.h"
#include "apps/train/resume.h"
#include "engine/host_memory.h"

namespace sluice {

/// The plan of a run on the device at hand. All ranks make the same choices, by the figures of the
/// first and what the smallest of them has; the memory is that of this rank. What the checkpoint
/// that was found has recorded is kept if it can be, else `found` receives a warning.
Plan plan_here(const TrainOptions& options, RunSetup& setup, Resumption& found, Job& job);

/// Bytes in use at one time.
std::size_t host_peak(const HostMemory& host);

/// What the operating system counts for this process, at its peak.
std::size_t resident_peak();

/// What the driver says is taken on the card, by anybody; 0 on the CPU.
std::size_t driver_used(const DeviceContext& device);

}  // namespace sluice
