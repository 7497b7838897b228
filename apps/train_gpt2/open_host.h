#pragma once

#include "apps/plan/planner.h"
#include "engine/host_memory.h"

namespace sluice {

/// Reserves the host memory of the plan. If the system refuses to pin that much on any rank, warns
/// and, unless flags forbid it, changes the plan: the CPU updates half or more of the state that
/// was to visit the GPU in host memory, until the rest can be pinned.
HostMemory open_host(const TrainOptions& options, const RunSetup& setup, Communicator& ranks,
                     const DevicePtr& device, Plan& plan);

}  // namespace sluice
