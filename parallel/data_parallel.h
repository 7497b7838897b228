#pragma once

#include "parallel/gradient_reducer.h"
#include "parallel/sharded_optimizer.h"

namespace sluice {

/// Ranks that share every batch: what they add up after backward, and who updates what.
struct DataParallel {
  struct Options {
    bool sharded = false;  ///< ZeRO-1
    bool overlap = true;
    bool scratch = true;  ///< see GradientReducer
  };

  /// `data` works on the memory of the space, `among` on the host's. Everything given outlives it.
  DataParallel(ParameterSpace& space, Optimizer& inner, const Partition& partition,
               Communicator& data, Communicator& among, const Options& options)
      : control(among),
        optimizer(space, inner, partition, data, among, options.sharded),
        gradients(space, partition, data, {options.sharded, options.overlap, options.scratch}) {}

  Communicator& control;  ///< on host memory
  ShardedOptimizer optimizer;
  GradientReducer gradients;
};

}  // namespace sluice
