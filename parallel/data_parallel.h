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
    /// Of ranks that find the same losses, this one says them.
    bool answers = true;
    ModelNorm* norm = nullptr;  ///< see ShardedOptimizer
  };

  /// `data` works on the memory of the space, `peers`, the same ranks, on the host's; `all` may be
  /// more of them, also on the host's. Everything given outlives it.
  DataParallel(ParameterSpace& space, Optimizer& inner, const Partition& partition,
               Communicator& data, Communicator& peers, Communicator& all, const Options& options)
      : control(all),
        among(peers),
        answers(options.answers),
        optimizer(space, inner, partition, data, peers, options.sharded, options.norm),
        gradients(space, partition, data, {options.sharded, options.overlap, options.scratch}) {}

  int replica() const { return among.rank(); }
  int replicas() const { return among.size(); }

  Communicator& control;  ///< all ranks, on host memory
  Communicator& among;    ///< those with the same part of the model
  bool answers;           ///< see Options
  ShardedOptimizer optimizer;
  GradientReducer gradients;
};

}  // namespace sluice
