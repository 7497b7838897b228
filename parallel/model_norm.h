#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "optim/parameter_space.h"
#include "parallel/communicator.h"

namespace sluice {

/// The norm of the gradients of a model of which every rank has some sections, or some elements of
/// the matrices. The sums of squares of all blocks are brought together and added in one order, so
/// that all ranks find the same; where matrices are whole, it is the order and the bits of a
/// process that has all of the model.
class ModelNorm {
 public:
  struct Place {
    int shard = 0;       ///< of the matrices, that this rank has
    std::string copy{};  ///< the slot that another rank answers for; empty: none
  };
  /// `shards`: the layouts of all sections, by shard of the matrices; what is not divided counts in
  /// the first. `ranks` are all of them, on host memory. Everything given outlives it.
  ModelNorm(ParameterSpace& space, std::span<const SpaceLayout> shards, const Place& place,
            Communicator& ranks);

  /// As ParameterSpace::clip_gradients, from the blocks in `ranges` of this rank; every block of
  /// the model is given by one rank. Waits for the device and for all ranks.
  const Tensor& clip_gradients(const std::vector<SpaceRange>& ranges, double limit,
                               double loss_scale);

 private:
  struct Stretch {
    std::size_t here, there;  ///< its first block in the space and in the model
    std::size_t blocks;
  };

  ParameterSpace& space_;
  Communicator& ranks_;
  std::vector<Stretch> stretches_;
  std::vector<double> sums_;  ///< of the blocks of all shards
  Tensor partials_;           ///< the same on the device
};

}  // namespace sluice
