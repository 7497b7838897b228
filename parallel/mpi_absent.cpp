#include <chrono>
#include <cstdlib>
#include <thread>

#include "kernels/base/error.h"
#include "parallel/mpi_transport.h"

// What a build without MPI has instead of mpi_transport.cpp.

namespace sluice {

MpiProcess::MpiProcess() : uncaught_(0) {
  // All ranks come here. One of them tells, and its end is that of the others.
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
