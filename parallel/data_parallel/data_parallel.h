#pragma once

#include "parallel/data_parallel/gradient_reducer.h"
#include "parallel/data_parallel/zero_optimizer.h"

namespace sluice {

/// Ranks that share every batch: the reduction of their gradients and the division of the update.
struct DataParallel {
  struct Options {
    bool zero = false;  ///< see ZeroOptimizer
    bool overlap = true;
    bool scratch = true;  ///< see GradientReducer
    /// This rank reports the loss for all ranks that compute the same one.
    bool reports_loss = true;
    ModelNorm* norm = nullptr;  ///< see ZeroOptimizer
  };

  /// `data` and `peers` are the same ranks: `data` works on the memory of the space, `peers` and
  /// `all` on host memory. `all` may have more ranks. All arguments must outlive this object.
  DataParallel(ParameterSpace& space, Optimizer& inner, const BucketPlan& bucket_plan,
               Communicator& data, Communicator& peers, Communicator& all, const Options& options)
      : control(all),
        among(peers),
        reports_loss(options.reports_loss),
        optimizer(space, inner, bucket_plan, data, peers, options.zero, options.norm),
        gradients(space, bucket_plan, data, {options.zero, options.overlap, options.scratch}) {}

  int replica() const { return among.rank(); }
  int replicas() const { return among.size(); }

  Communicator& control;  ///< all ranks, on host memory
  Communicator& among;    ///< the ranks with the same part of the model
  bool reports_loss;      ///< see Options
  ZeroOptimizer optimizer;
  GradientReducer gradients;
};

}  // namespace sluice
