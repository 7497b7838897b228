#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "optim/parameter_space.h"
#include "parallel/communicator.h"

namespace sluice {

/// The norm of the gradients of a model of which every rank has some sections. The sums of squares
/// of all blocks are brought together and added in the order of the whole model, so that the norm
/// has the bits of a process that has all of it.
class ModelNorm {
 public:
  /// `whole` is the layout of the model, `ranks` all of them, on host memory. The slot `copy`, if
  /// not empty, is one that another rank answers for. Everything given outlives it.
  ModelNorm(ParameterSpace& space, const SpaceLayout& whole, Communicator& ranks,
            const std::string& copy);

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
  std::vector<double> sums_;  ///< of the model's blocks
  Tensor partials_;           ///< the same on the device
};

}  // namespace sluice
