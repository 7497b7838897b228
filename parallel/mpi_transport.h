#pragma once

#include <memory>
#include <string>

#include "parallel/transport.h"

namespace sluice {

/// This process's rank where mpirun, srun or the like started it, else -1.
int launched_rank();

/// This process's part in MPI, from MPI_Init to MPI_Finalize. All messages are posted and tested,
/// never waited for inside of MPI, where a waiting rank would take the core from a computing one.
class MpiProcess {
 public:
  /// Throws Error (usage) where the program was built without MPI.
  MpiProcess();
  /// Ends MPI in step with the others, unless leave() was called or an exception is on its way:
  /// then the launcher sees a rank that left without a word and ends the others.
  ~MpiProcess();
  void leave() { left_ = true; }
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  /// All ranks.
  std::unique_ptr<Transport> world();
  /// Place among the ranks of this computer, and their number.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  /// Ends all ranks at once.
  [[noreturn]] static void abort(int exit_code);

 private:
  int uncaught_;
  bool left_ = false;
  int local_rank_ = 0;
  int local_size_ = 1;
};

/// "Open MPI v4.1.4", or why there is none.
std::string mpi_version();

}  // namespace sluice
