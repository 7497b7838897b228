#pragma once

#include <memory>
#include <optional>

#include "parallel/comm/communicator.h"
#include "parallel/comm/transport/mpi_transport.h"

namespace sluice {

/// This process as a rank of its job: one of those that mpirun or srun started, or the only one.
class World {
 public:
  World();

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  /// This rank's position among the ranks of this computer, and their number.
  int local_rank() const { return mpi_ ? mpi_->local_rank() : 0; }
  int local_size() const { return mpi_ ? mpi_->local_size() : 1; }
  const std::shared_ptr<Transport>& transport() const { return transport_; }

  /// Called when this rank ends because of an error. MPI_Finalize is then skipped, since it would
  /// wait for the other ranks.
  void leave() {
    if (mpi_) mpi_->leave();
  }

  /// The same for errors that usually all ranks have alike. Rank 0 returns at once to report the
  /// error; the others wait for the launcher, which ends them with rank 0.
  void leave_after_the_first();

  /// Returns a communicator of all ranks on host memory.
  std::shared_ptr<Communicator> communicator(std::shared_ptr<Monitor> monitor,
                                             const Communicator::Options& options) const;

 private:
  std::optional<MpiProcess> mpi_;
  std::shared_ptr<Transport> transport_;
};

}  // namespace sluice
