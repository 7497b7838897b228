#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "optim/space/parameter_space.h"
#include "parallel/comm/communicator.h"

namespace sluice {

/// Computes the gradient norm of a model that is divided between ranks (pipeline or tensor
/// parallelism). It collects the sums of squares of all blocks and adds them in a fixed order, so
/// that all ranks get the same norm. Without tensor parallelism the bits are those of a single
/// process with the whole model.
class ModelNorm {
 public:
  struct Position {
    int shard = 0;  ///< this rank's tensor-parallel shard
    /// Name of a slot that is a copy of another rank's, which contributes it: the tied output
    /// matrix on a pipeline's last stage. Empty: this rank has no such slot.
    std::string copy{};
  };
  /// `shards[i]` is the layout of the whole model (all stages) on tensor-parallel shard i.
  /// Parameters that are not divided count once, in shard 0. `ranks` are all ranks, on host memory.
  /// All arguments must outlive this object.
  ModelNorm(ParameterSpace& space, std::span<const SpaceLayout> shards, const Position& place,
            Communicator& ranks);

  /// Does what ParameterSpace::clip_gradients does. `ranges`: the blocks that this rank
  /// contributes; each block of the model must come from exactly one rank. Waits for the device and
  /// all ranks.
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
  std::vector<double> sums_;  ///< sums of squares, for the blocks of all shards; empty in a plan
  Tensor partials_;           ///< the same on the device
};

}  // namespace sluice
