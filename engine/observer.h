#pragma once

#include <span>

#include "engine/autograd.h"

namespace sluice {

/// Sees the results of all ops of a thread, for example to find the first NaN. An observer may read
/// tensors but must not write to them.
class Observer {
 public:
  virtual ~Observer() = default;

  /// Called when an op has computed `outputs` and recorded them as results of `node`.
  virtual void computed(const Node& node, std::span<Tensor* const> outputs) = 0;
  /// Called when the backward step of `node` has handed over a gradient for the edge `to`. The
  /// gradient may be a part of a sum to which other nodes add.
  virtual void handed_over(const Node& node, const Edge& to, const Tensor& gradient) = 0;
};

/// While an object of this class lives, `observer` sees the ops of this thread.
class Observed {
 public:
  explicit Observed(Observer& observer);
  ~Observed();
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;

 private:
  Observer* previous_;
};

}  // namespace sluice
