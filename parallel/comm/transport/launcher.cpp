#include <cstdlib>

#include "parallel/comm/transport/mpi_transport.h"

namespace sluice {

int launched_rank() {
  // Set by Open MPI, PMI (MPICH, Slurm) and PMIx. Nothing else tells the rank before MPI starts.
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  return -1;
}

}  // namespace sluice
