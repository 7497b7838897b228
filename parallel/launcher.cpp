#include <algorithm>
#include <array>
#include <cstdlib>

#include "parallel/mpi_transport.h"

namespace sluice {

bool started_by_launcher() {
  // Open MPI's, PMI's (MPICH, Slurm) and PMIx's: the only way to know without starting MPI.
  constexpr std::array names{"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK"};
  return std::ranges::any_of(names, [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace sluice
