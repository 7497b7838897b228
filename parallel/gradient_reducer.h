#pragma once

#include <cstddef>
#include <vector>

#include "engine/timeline.h"
#include "optim/parameter_space.h"
#include "parallel/communicator.h"
#include "parallel/partition.h"

namespace sluice {

/// Adds up the gradients of all ranks, bucket by bucket, each as soon as backward has completed it,
/// while the rest of backward runs (Li et al., PyTorch Distributed, 2020). The loss of every rank
/// is scaled by the tokens of all, so that nothing is divided afterwards.
class GradientReducer {
 public:
  struct Options {
    /// Every rank receives the sums of its own part alone (reduce_scatter), not all of them.
    bool scatter = false;
    /// Reductions begin during backward, not after it.
    bool overlap = true;
    /// Takes memory for the reductions under way from the space's device, which is the host.
    bool scratch = true;
  };

  /// Listens to the gradients of `space` as long as it lives. Everything given outlives it.
  GradientReducer(ParameterSpace& space, const Partition& partition, Communicator& ranks,
                  const Options& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Records reductions ("reduce" on the network's lane) and the wait for them ("wait").
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  /// The backward passes that follow are the step's last: they complete the gradients of the slots
  /// in `range`, those of others are not complete before finish().
  void expect(const SpaceRange& range);
  void expect() { expect({0, space_.size()}); }
  /// After it: reduces what is left and waits for all. Gradients that nothing reached are zero.
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
  const Partition& partition_;
  Communicator& ranks_;
  Options options_;
  std::vector<std::vector<std::size_t>> buckets_of_slot_;
  std::vector<std::size_t> slots_left_;  ///< of each bucket
  std::vector<bool> started_;
  std::vector<bool> expected_;   ///< slots; none: of no step yet
  std::vector<Tensor> scratch_;  ///< of the operations under way, in turn
  std::vector<UnderWay> under_way_;
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
