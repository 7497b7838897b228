#include "parallel/comm/world.h"

#include <chrono>
#include <thread>

namespace sluice {

World::World() {
  if (launched_rank() < 0) {
    transport_ = make_self_transport();
    return;
  }
  mpi_.emplace();
  transport_ = mpi_->world();
}

std::shared_ptr<Communicator> World::communicator(std::shared_ptr<Monitor> monitor,
                                                  const Communicator::Options& options) const {
  if (size() == 1) return Communicator::planned(1, 0);
  return std::make_shared<Communicator>(transport_, std::move(monitor), options);
}

void World::leave_after_the_first() {
  leave();
  if (rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
}

}  // namespace sluice
