#pragma once

#include <memory>
#include <string>

#include "parallel/comm/transport/mailbox.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

/// Returns this process's rank if mpirun, srun or a similar launcher started it, else -1.
int launched_rank();

/// Owns MPI in this process, from MPI_Init to MPI_Finalize. Messages use non-blocking calls and
/// MPI_Test: a rank that waits inside MPI would take the core from one that computes.
class MpiProcess {
 public:
  /// Throws Error (usage) if the program was built without MPI, or if a launcher started several
  /// processes that are alone in MPI.
  MpiProcess();
  /// Calls MPI_Finalize together with the other ranks, unless leave() was called or an exception is
  /// in flight: then the launcher sees a rank that exited without MPI_Finalize and ends the others.
  ~MpiProcess();
  void leave(int exit_code) { exit_code_ = exit_code; }
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  /// Returns the transport of all ranks.
  std::unique_ptr<Transport> world();
  /// Returns the transport of the ranks of this host. Call it once.
  std::unique_ptr<Transport> local() { return std::move(local_); }
  /// Returns a mailbox of all ranks; none if this MPI lets only one thread at a time call it. All
  /// ranks call it.
  std::unique_ptr<Mailbox> mailbox();
  /// This rank's index among the ranks of this host, and their number.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  /// Returns how many cores this rank may use, divided by the ranks that may use the same ones.
  int cores() const { return cores_; }
  /// Returns the MPI library's name and version, "Open MPI v4.1.4, ..."; "" without MPI.
  static std::string library();
  /// Ends all ranks at once.
  [[noreturn]] static void abort(int exit_code);

 private:
  int uncaught_;
  int exit_code_ = 0;     ///< another if leave() was called
  bool threads_ = false;  ///< any thread may call MPI at any time
  std::unique_ptr<Transport> local_;
  int local_rank_ = 0;
  int local_size_ = 1;
  int cores_ = 1;
};

}  // namespace sluice
