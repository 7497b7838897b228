#pragma once

#include <cstddef>
#include <vector>

#include "optim/optimizer.h"
#include "parallel/communicator.h"
#include "parallel/model_norm.h"
#include "parallel/partition.h"

namespace sluice {

/// An optimizer among ranks. Unsharded, each rank updates everything, from equal gradients.
/// Sharded (ZeRO-1; Rajbhandari et al., 2020), each keeps the state of its own parts of the space
/// and updates them alone, from gradients of which it has only those parts; the working weights are
/// gathered bucket by bucket before the forward pass reads them. The bits are the same.
class ShardedOptimizer {
 public:
  /// `ranks` works on the device's memory, `control` on the host's. If sharded, `space` has been
  /// made with the ranges of this rank. `norm` is there where the space is a part of a model's.
  /// Everything given outlives it.
  ShardedOptimizer(ParameterSpace& space, Optimizer& optimizer, const Partition& partition,
                   Communicator& ranks, Communicator& control, bool sharded,
                   ModelNorm* norm = nullptr);

  /// See ParameterSpace::clip_gradients.
  const Tensor& clip_gradients(double limit, double loss_scale = 1);

  // As those of Optimizer; all ranks call them together.
  void step(double rate, const Tensor& gradient_scale = {});
  void retract() { optimizer_.retract(); }
  void prefetch() { optimizer_.prefetch(); }
  void update_through(std::int64_t end);
  void finish() { update_through(space_.size()); }
  void settle();
  void set_timeline(Timeline* timeline);
  StreamedBytes moved() const { return optimizer_.moved(); }

  /// As ParameterSpace::read_weights and Optimizer::read_state, complete at rank 0. All ranks call
  /// them together, for the same elements.
  void read_weights(std::int64_t first, std::span<std::byte> out);
  void read_state(const ParameterSpace::Slot& slot, std::size_t field, std::int64_t first,
                  std::span<std::byte> out);

 private:
  std::vector<SpaceRange> mine() const;
  const Partition::Bucket& bucket(std::size_t from_the_beginning) const;
  void start_gather();
  void collect(std::span<std::byte> out);

  ParameterSpace& space_;
  Optimizer& optimizer_;
  const Partition& partition_;
  Communicator& ranks_;
  Communicator& control_;
  bool sharded_;
  ModelNorm* norm_;
  std::vector<SpaceRange> mine_;
  std::vector<Handle> gathers_;  ///< of the last step, by bucket in ascending order
  std::size_t waited_ = 0;       ///< of them
  bool pending_ = false;         ///< a step's weights have not all been gathered
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
