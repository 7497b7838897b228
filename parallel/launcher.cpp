#include <cstdlib>

#include "parallel/mpi_transport.h"

namespace sluice {

int launched_rank() {
  // Open MPI's, PMI's (MPICH, Slurm) and PMIx's: the only way to know without starting MPI.
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  return -1;
}

}  // namespace sluice
