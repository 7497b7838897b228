#pragma once

#include "parallel/data_parallel/gradient_reducer.h"
#include "parallel/data_parallel/zero_optimizer.h"

namespace sluice {

/// Scratch memory on the device for all reductions and gathers of ZeRO-1's parts, which have
/// different sizes (padded_bytes()). None without ZeRO.
Tensor padded_scratch(const ParameterSpace& space, const BucketPlan& bucket_plan);

/// Data parallelism among ranks that share every batch: reduces their gradients and, if the space
/// has owned ranges (ZeRO-1), divides the optimizer's update between them.
struct DataParallel {
  struct Options {
    bool overlap = true;
    bool scratch = true;  ///< see GradientReducer; false on a GPU
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
        padded(options.scratch ? Tensor() : padded_scratch(space, bucket_plan)),
        optimizer(space, inner, bucket_plan, data, options.norm, view_of(padded)),
        gradients(space, bucket_plan, data, {options.overlap, options.scratch, view_of(padded)}) {}

  int replica() const { return among.rank(); }
  int replicas() const { return among.size(); }

  Communicator& control;  ///< all ranks, on host memory
  Communicator& among;    ///< the ranks with the same part of the model
  bool reports_loss;      ///< see Options
  Tensor padded;          ///< scratch memory for parts of different sizes on a GPU
  ZeroOptimizer optimizer;
  GradientReducer gradients;

 private:
  static View view_of(const Tensor& tensor) { return tensor ? tensor.view() : View(); }
};

}  // namespace sluice
