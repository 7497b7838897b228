#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "optim/space/parameter_space.h"
#include "parallel/comm/communicator.h"

namespace sluice {

/// The gradient norm of a model of which every rank has some sections, or some elements of the
/// matrices. The sums of squares of all blocks are collected and added in one order, so that all
/// ranks find the same norm. If matrices are whole, order and bits are those of a process that has
/// all of the model.
class ModelNorm {
 public:
  struct Position {
    int shard = 0;       ///< index of the shard of the matrices that this rank has
    std::string copy{};  ///< a slot that another rank accounts for; empty: none
  };
  /// `shards`: the layouts of all sections, by shard of the matrices; what is not divided counts in
  /// the first. `ranks` are all ranks, on host memory. All arguments must outlive this object.
  ModelNorm(ParameterSpace& space, std::span<const SpaceLayout> shards, const Position& place,
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
