#pragma once

#include <cstddef>
#include <vector>

#include "optim/optimizer.h"

namespace sluice {

/// Updates an Optimizer's speculative chunks while the backward pass still runs: each as soon as
/// its gradient and those of all speculative chunks above it in the space are complete.
/// SuperOffload (arXiv 2509.21271) does this on the CPU. Here the old values are kept until the
/// gradient norm is known, so a step that clips gives the same bits as one without speculation.
class SpeculativeUpdates {
 public:
  /// Installs gradient-ready hooks, which the destructor removes. Both arguments must outlive it.
  SpeculativeUpdates(ParameterSpace& space, Optimizer& optimizer);
  ~SpeculativeUpdates();
  SpeculativeUpdates(const SpeculativeUpdates&) = delete;
  SpeculativeUpdates& operator=(const SpeculativeUpdates&) = delete;

  /// Called before the backward pass that completes a step's gradients; see Optimizer::speculate.
  void begin(double rate, double gradient_scale);
  /// Restores weights and state, since no step follows.
  void cancel() { optimizer_.cancel(); }
  std::int64_t undone() const { return optimizer_.undone(); }

 private:
  void complete(std::size_t slot);

  ParameterSpace& space_;
  Optimizer& optimizer_;
  std::vector<std::size_t> slots_;  ///< the speculative slots, in reverse order
  std::vector<bool> complete_;      ///< one flag for each of slots_
  std::size_t next_ = 0;            ///< position of the first incomplete one in slots_
  bool active_ = false;
};

}  // namespace sluice
