#pragma once

#include <cstddef>
#include <vector>

#include "optim/optimizer.h"
#include "parallel/comm/communicator.h"
#include "parallel/data_parallel/bucket_plan.h"
#include "parallel/data_parallel/model_norm.h"

namespace sluice {

/// The optimizer of data-parallel ranks. If the space has owned ranges (SpaceOptions::owned;
/// ZeRO-1, Rajbhandari et al., 2020), each rank keeps optimizer state only for these and updates
/// only these, so it needs only their gradients. Otherwise each rank updates all weights from equal
/// gradients. The working weights are all-gathered bucket by bucket before the forward pass reads
/// them. Both ways give the same bits.
class ZeroOptimizer {
 public:
  /// `ranks` works on the device's memory. The owned ranges of `space`, if it has any, are those of
  /// `bucket_plan`; else its parts are not read. `norm` is needed if the space is only a part of
  /// the model. `padded`: scratch memory for all-gathers on a GPU, padded_bytes(). All arguments
  /// must outlive this object.
  ZeroOptimizer(ParameterSpace& space, Optimizer& optimizer, const BucketPlan& bucket_plan,
                Communicator& ranks, ModelNorm* norm = nullptr, const View& padded = {});

  /// See ParameterSpace::clip_gradients.
  const Tensor& clip_gradients(double limit, double loss_scale = 1);

  // These are as in Optimizer. All ranks call them together.
  void step(double rate, const Tensor& gradient_scale = {});
  void roll_back() { optimizer_.roll_back(); }
  void prefetch() { optimizer_.prefetch(); }
  void update_through(std::int64_t end);
  void finish() { update_through(space_.size()); }
  void synchronize();
  void set_timeline(Timeline* timeline);
  StreamedBytes moved() const { return optimizer_.moved(); }
  bool pending() const { return optimizer_.pending(); }

  /// The ranges whose state each rank keeps, by rank; none if every rank keeps the state of all.
  std::vector<std::vector<SpaceRange>> kept_by_rank() const;

 private:
  std::vector<SpaceRange> contributed() const;
  const BucketPlan::Bucket& bucket(std::size_t from_the_beginning) const;
  void start_gather();

  ParameterSpace& space_;
  Optimizer& optimizer_;
  const BucketPlan& bucket_plan_;
  Communicator& ranks_;
  ModelNorm* norm_;
  View padded_;
  std::vector<SpaceRange> owned_;
  std::vector<Handle> gathers_;  ///< the last step's all-gathers, by ascending bucket
  std::size_t waited_ = 0;       ///< number of gathers_ waited for
  bool pending_ = false;         ///< a step's weights have not all been gathered
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
