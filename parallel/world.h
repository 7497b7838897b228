#pragma once

#include <memory>
#include <optional>

#include "parallel/communicator.h"
#include "parallel/mpi_transport.h"

namespace sluice {

/// This process among the ranks of its job: one of those that mpirun or srun has started, or alone.
class World {
 public:
  World();

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  /// Place among the ranks of this computer, and their number.
  int local_rank() const { return mpi_ ? mpi_->local_rank() : 0; }
  int local_size() const { return mpi_ ? mpi_->local_size() : 1; }
  const std::shared_ptr<Transport>& transport() const { return transport_; }

  /// This rank ends because of an error: without MPI_Finalize, in which it would wait for the
  /// others.
  void leave() {
    if (mpi_) mpi_->leave();
  }

  /// The same where all ranks fail alike, as a rule: the first one comes back at once to say why;
  /// the others wait for the launcher, which ends them with it.
  void leave_after_the_first();

  /// All ranks, on host memory.
  std::shared_ptr<Communicator> communicator(std::shared_ptr<Monitor> monitor,
                                             const Communicator::Options& options) const;

 private:
  std::optional<MpiProcess> mpi_;
  std::shared_ptr<Transport> transport_;
};

}  // namespace sluice
