#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/cpu/parallel_for.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/transport/mpi_transport.h"

namespace sluice {

/// This process as a rank of its job, which mpirun or srun has started, or as the only rank.
class World {
 public:
  /// A rank that never starts would let the others wait in MPI without bound.
  struct StartLimit {
    double seconds = 120;
    /// Called on another thread when they are over, with a sentence; it should print it. Then this
    /// process ends with exit code 1. Null: there is no limit.
    std::function<void(const std::string& sentence)> on_late{};
  };

  World() : World(StartLimit{}) {}
  explicit World(const StartLimit& limit);

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  /// This rank's index among the ranks of this host, and their number.
  int local_rank() const { return mpi_ ? mpi_->local_rank() : 0; }
  int local_size() const { return mpi_ ? mpi_->local_size() : 1; }
  /// Returns how many cores this rank may use, divided by the ranks that may use the same ones.
  int cores() const { return mpi_ ? mpi_->cores() : cpu::available_cores(); }
  /// Returns a warning about how this process was started; "" if there is none.
  const std::string& note() const { return note_; }
  const std::shared_ptr<Transport>& transport() const { return transport_; }
  /// Returns the transport of this host's ranks. Call it once.
  std::unique_ptr<Transport> local() { return mpi_ ? mpi_->local() : make_self_transport(); }

  /// See MpiProcess::mailbox(); none for the only rank.
  std::unique_ptr<Mailbox> mailbox() { return mpi_ ? mpi_->mailbox() : nullptr; }

  /// Call it when this rank ends with this exit code because of an error: MPI_Finalize, which would
  /// wait for the other ranks, is then skipped.
  void leave(int exit_code) {
    if (mpi_) mpi_->leave(exit_code);
  }

  /// leave() for errors that usually all ranks run into. Rank 0 returns at once to report the
  /// error. The others wait three seconds, within which the launcher normally ends them.
  void leave_after_the_first(int exit_code);

  /// Returns a communicator of all ranks on host memory.
  std::shared_ptr<Communicator> communicator(std::shared_ptr<Monitor> monitor,
                                             const Communicator::Options& options) const;

 private:
  std::optional<MpiProcess> mpi_;
  std::shared_ptr<Transport> transport_;
  std::string note_;
};

}  // namespace sluice
