#include <chrono>
#include <cstdlib>
#include <thread>

#include "kernels/base/error.h"
#include "parallel/comm/transport/mpi_transport.h"

// Replaces mpi_transport.cpp in a build without MPI.

namespace sluice {

MpiProcess::MpiProcess() : uncaught_(0) {
  // All ranks come here. Rank 0 reports the error, and its end makes the launcher end the others.
  if (launched_rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
  fail(
      "this program was started as one of several ranks but built without MPI; install "
      "libopenmpi-dev and openmpi-bin and build again, or start it without mpirun",
      ErrorKind::usage);
}
MpiProcess::~MpiProcess() {
  static_cast<void>(uncaught_);
}
std::unique_ptr<Transport> MpiProcess::world() {
  return make_self_transport();
}
void MpiProcess::abort(int exit_code) {
  std::_Exit(exit_code);
}
std::string mpi_version() {
  return "built without MPI";
}

}  // namespace sluice
