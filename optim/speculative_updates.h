#pragma once

#include <cstddef>
#include <vector>

#include "optim/optimizer.h"

namespace sluice {

/// Begins the updates of an Optimizer's speculative chunks while the backward pass still runs: each
/// as soon as its gradient and those of all chunks above it are complete. SuperOffload (arXiv
/// 2509.21271) does that on the CPU; here what an update changes keeps its old bits until the norm
/// of all gradients is known, so that a step that clips has the bits of one that waited.
class SpeculativeUpdates {
 public:
  /// Listens to gradients as long as it lives. Both outlive it.
  SpeculativeUpdates(ParameterSpace& space, Optimizer& optimizer);
  ~SpeculativeUpdates();
  SpeculativeUpdates(const SpeculativeUpdates&) = delete;
  SpeculativeUpdates& operator=(const SpeculativeUpdates&) = delete;

  /// The backward pass that follows completes the gradients of a step, see Optimizer::speculate.
  void begin(double rate, double gradient_scale);
  /// No step follows: weights and state are as they were.
  void abandon() { optimizer_.abandon(); }
  std::int64_t taken_back() const { return optimizer_.taken_back(); }

 private:
  void complete(std::size_t slot);

  ParameterSpace& space_;
  Optimizer& optimizer_;
  std::vector<std::size_t> slots_;  ///< speculative ones, backwards
  std::vector<bool> complete_;      ///< of slots_
  std::size_t next_ = 0;            ///< the first of slots_ that is not
  bool active_ = false;
};

}  // namespace sluice
