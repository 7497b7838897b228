#pragma once

#include <span>

#include "engine/autograd.h"

namespace sluice {

/// Sees what the ops of this thread compute, to find out where a number went wrong. It may read and
/// must not write.
class Observer {
 public:
  virtual ~Observer() = default;

  /// An op has computed these and recorded them as results of `node`.
  virtual void computed(const Node& node, std::span<Tensor* const> outputs) = 0;
  /// The backward step of `node` has handed over a gradient that goes to `to`. It may be a part of
  /// a sum that other nodes add to.
  virtual void handed_over(const Node& node, const Edge& to, const Tensor& gradient) = 0;
};

/// While it lives, `observer` looks on.
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
