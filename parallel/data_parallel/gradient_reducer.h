#pragma once

#include <cstddef>
#include <vector>

#include "engine/timeline.h"
#include "optim/space/parameter_space.h"
#include "parallel/comm/communicator.h"
#include "parallel/data_parallel/bucket_plan.h"

namespace sluice {

/// Adds up the gradients of all ranks, bucket by bucket, each as soon as backward has completed it,
/// while the rest of backward runs (Li et al., PyTorch Distributed, 2020). The loss of every rank
/// is scaled by the number of tokens of all ranks, so that nothing is divided afterwards.
class GradientReducer {
 public:
  struct Options {
    /// Every rank receives only the sums of its own part (reduce_scatter), not all of them.
    bool scatter = false;
    /// Reductions begin during backward, not after it.
    bool overlap = true;
    /// Allocates scratch memory for reductions under way on the space's device, which is the host.
    bool scratch = true;
  };

  /// Listens to the gradients of `space` as long as it lives. All arguments must outlive it.
  GradientReducer(ParameterSpace& space, const BucketPlan& bucket_plan, Communicator& ranks,
                  const Options& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Records reductions ("reduce" on the network's lane) and the wait for them ("wait").
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  /// Announces the last backward passes of the step, which complete the gradients of the slots in
  /// `range`. The gradients of other slots are complete only at finish().
  void expect(const SpaceRange& range);
  void expect() { expect({0, space_.size()}); }
  /// Called after backward: reduces the rest and waits for all. Gradients never reached are zero.
  void finish();

 private:
  struct UnderWay {
    Handle handle;
    std::size_t span = 0;
    bool recorded = false;
  };
  void ready(std::size_t slot);
  void start(std::size_t bucket);
  void note_finished();

  ParameterSpace& space_;
  const BucketPlan& bucket_plan_;
  Communicator& ranks_;
  Options options_;
  std::vector<std::vector<std::size_t>> buckets_of_slot_;
  std::vector<std::size_t> slots_left_;  ///< of each bucket
  std::vector<bool> started_;
  std::vector<bool> expected_;   ///< one flag for each slot; empty between steps
  std::vector<Tensor> scratch_;  ///< used in turn by the operations under way
  std::vector<UnderWay> under_way_;
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
