#pragma once

#include "apps/plan/planner.h"
#include "apps/train_gpt2/job.h"
#include "apps/train_gpt2/resume.h"
#include "engine/host_memory.h"

namespace sluice {

/// Plans a run on this machine. All ranks make the same choices, by rank 0's rates and the smallest
/// memory of any rank; the memory in the result is this rank's. Keeps what the found checkpoint
/// records if that is possible, else `found` receives a warning.
Plan plan_here(const TrainOptions& options, RunSetup& setup, Resumption& found, Job& job);

/// Returns the peak bytes in use, of pinned and ordinary host memory together.
std::size_t host_peak(const HostMemory& host);

/// Returns the peak resident bytes of this process, as the operating system counts them.
std::size_t resident_peak();

/// Returns the bytes of the GPU in use by all processes, as the driver counts them; 0 on the CPU.
std::size_t driver_used(const DeviceContext& device);

/// Reserves the host memory of the plan. If the system refuses to pin that much on any rank, warns
/// and, unless flags forbid it, changes the plan: the CPU updates half or more of the state that
/// was to visit the GPU in host memory, until the rest can be pinned.
HostMemory open_host(const TrainOptions& options, const RunSetup& setup, Communicator& ranks,
                     const DevicePtr& device, Plan& plan);

}  // namespace sluice
