#pragma once

#include "parallel/data_parallel/gradient_reducer.h"
#include "parallel/data_parallel/zero_optimizer.h"

namespace sluice {

/// Data parallelism among ranks that share every batch: reduces their gradients and, if the space
/// has owned ranges (ZeRO-1), divides the optimizer's update between them.
struct DataParallel {
  struct Options {
    bool overlap = true;
    bool scratch = true;  ///< see GradientReducer
    /// This rank reports the loss; false on other ranks that compute the same loss.
    bool reports_loss = true;
    ModelNorm* norm = nullptr;  ///< see ZeroOptimizer
  };

  /// `data` and `peers` have the same ranks. `data` works on the memory of the space, `peers` and
  /// `all` on host memory. `all` has all ranks of the job. All arguments must outlive this object.
  DataParallel(ParameterSpace& space, Optimizer& inner, const BucketPlan& bucket_plan,
               Communicator& data, Communicator& peers, Communicator& all, const Options& options)
      : control(all),
        among(peers),
        reports_loss(options.reports_loss),
        optimizer(space, inner, bucket_plan, data, peers, options.norm),
        gradients(space, bucket_plan, data, {options.overlap, options.scratch}) {}

  int replica() const { return among.rank(); }
  int replicas() const { return among.size(); }

  Communicator& control;  ///< all ranks, on host memory
  Communicator& among;    ///< the ranks with the same part of the model
  bool reports_loss;      ///< see Options
  ZeroOptimizer optimizer;
  GradientReducer gradients;
};

}  // namespace sluice
