#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace sluice {

/// The ranks of a run, which share every batch, as its parts see them.
struct Ranks {
  std::shared_ptr<Communicator> control;  ///< on host memory
  std::shared_ptr<Communicator> data;     ///< on the memory of the device that computes

  int rank() const { return control->rank(); }
  int size() const { return control->size(); }
};

/// A run of one process.
inline Ranks single_rank() {
  const std::shared_ptr<Communicator> alone = Communicator::planned(1, 0);
  return {alone, alone};
}

/// One rank for a plan, in which nothing is sent.
inline Ranks planned_ranks(int size, int rank) {
  const std::shared_ptr<Communicator> one = Communicator::planned(size, rank);
  return {one, one};
}

}  // namespace sluice
