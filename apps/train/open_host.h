#pragma once

#include "apps/train/planner.h"
#include "engine/host_memory.h"

namespace sluice {

/// Memory for what the plan keeps on the host. Where the system refuses any rank to pin so much,
/// says so and changes the plan, unless flags forbid it: of the state that was to visit the GPU the
/// CPU updates half where it rests, or more, until the little that still has to be pinned is.
HostMemory open_host(const TrainOptions& options, const RunSetup& setup, Communicator& ranks,
                     const DevicePtr& device, Plan& plan);

}  // namespace sluice
