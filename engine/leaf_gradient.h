#pragma once

#include <deque>
#include <functional>
#include <unordered_map>

#include "engine/tensor.h"

namespace sluice {

/// A buffer that a backward step writes to directly, such as a matrix product that adds to the
/// gradient of its weight.
struct GradientTarget {
  Tensor tensor;
  bool accumulate = false;  ///< true: add to the contents; false: overwrite all of them
};

/// Writes or adds a gradient.
using WriteGradient = std::function<void(const GradientTarget&)>;

/// Makes gradients of `leaf` go to `buffer` (same shape) instead of memory allocated for them.
void set_gradient_buffer(const Tensor& leaf, const Tensor& buffer);
/// Sets the hook that is called before a first contribution is written to the leaf's gradient: one
/// that overwrites what is there. It may make the memory free for it.
void set_gradient_begin_hook(const Tensor& leaf, std::function<void()> hook);
/// Sets the hook that backward() calls as soon as the leaf's gradient of that pass is complete, or
/// DeferredGradients::add() where the pass has left it for later.
void set_gradient_ready_hook(const Tensor& leaf, std::function<void()> hook);
/// True if a contribution has been written since forget_gradient().
bool has_gradient(const Tensor& leaf);
/// Makes the next contribution overwrite the gradient instead of adding to it.
void forget_gradient(const Tensor& leaf);
/// Returns the buffer for a gradient of `leaf` that is written or added outside of a backward pass.
GradientTarget leaf_gradient_target(const Tensor& leaf, DType dtype);
/// Zeroes the gradient buffer of a leaf if no contribution has reached it.
void zero_unused_gradient(const Tensor& leaf);

/// Holds gradients of leaves that a backward pass leaves for later, since nothing else in the pass
/// needs them: those of weights, where a pipeline's other ranks wait for those of the inputs (Qi et
/// al., "Zero bubble pipeline parallelism", 2023). Holds the tensors from which they are computed.
///
/// A leaf's contributions are added in the order of the passes if add() is called in that order.
/// So the bits are those of passes that defer nothing, unless a pass contributes to one leaf both
/// at once and later.
class DeferredGradients {
 public:
  bool empty() const { return waiting_.empty(); }

  /// Computes them and adds them to their leaves, in the order of the pass. `complete`: calls the
  /// gradient-ready hooks, which the pass has not called for these leaves.
  void add(bool complete);

 private:
  friend class Backward;
  struct Waiting {
    Tensor leaf;
    DType dtype;
    WriteGradient write;
  };
  bool holds(const Tensor& leaf) const { return left_.contains(leaf.impl()); }

  std::deque<Waiting> waiting_;
  std::unordered_map<TensorImpl*, int> left_;  ///< contributions of each leaf
};

}  // namespace sluice
