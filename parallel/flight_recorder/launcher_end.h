#pragma once

#include <chrono>

namespace sluice {

/// Sees to it that the launcher of this rank ends too: mpirun waits without bound for a host
/// that the network no longer reaches. A process that outlives this one kills the launcher's
/// process should it still be there after `patience` (mpirun of Open MPI 4 crashes if it is only
/// asked to end then). That is the nearest ancestor which is a process of Open MPI, PRRTE or Hydra;
/// without one, as with Slurm, which has limits of its own, nothing happens.
void end_launcher_after(std::chrono::seconds patience);

}  // namespace sluice
