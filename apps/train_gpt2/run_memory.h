#pragma once

#include "apps/plan/planner.h"
#include "apps/train_gpt2/job.h"
#include "apps/train_gpt2/resume.h"
#include "engine/host_memory.h"

namespace sluice {

/// Plans a run on this machine. All ranks make the same choices, from rank 0's rates and the
/// smallest memory of any rank; the returned memory counts are this rank's. Keeps the choices that
/// the found checkpoint records if they fit, else adds a warning to `found`. `communication`: bytes
/// that the connections to other GPUs have taken.
Plan plan_here(const TrainConfig& options, RunSetup& setup, Resumption& found, Job& job,
               std::size_t communication);

/// Returns the peak of bytes in use, the sum for pinned and ordinary host memory.
std::size_t host_peak(const HostMemory& host);

/// Returns the peak resident bytes of this process, as the operating system counts them.
std::size_t resident_peak();

/// Returns the bytes of GPU memory that all processes use, as the driver counts them; 0 on the CPU.
std::size_t driver_used(const DeviceContext& device);

/// Reserves the memory of the plan on the device, exactly, the host's by open_host(), and a file's.
HostMemory reserve_memory(const TrainConfig& options, const RunSetup& setup, Communicator& ranks,
                          const DevicePtr& device, Plan& plan);

/// Reserves the host memory of the plan. If the system refuses to pin that much on any rank, it
/// warns and changes the plan until the rest can be pinned: it gives up speculation, then (unless
/// --cpu-blocks is given) halves the number of blocks whose state visits the GPU. The CPU updates
/// the others in host memory.
HostMemory open_host(const TrainConfig& options, const RunSetup& setup, Communicator& ranks,
                     const DevicePtr& device, Plan& plan);

}  // namespace sluice
