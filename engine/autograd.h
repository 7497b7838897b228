#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/tensor.h"

namespace sluice {

/// A tensor that a Node keeps from the forward pass. It has a name, so that the contents of a graph
/// can be listed and counted.
struct SavedTensor {
  std::string_view name;
  Tensor tensor;
};

class Backward;
class Node;

/// Destination of the gradient of a node's input: a leaf, the node that produced the input, or
/// none. An edge holds no elements; a backward step saves the ones it needs in its node.
struct Edge {
  Tensor leaf;
  std::shared_ptr<Node> producer;
  std::size_t output = 0;  ///< index among the producer's outputs
  Shape shape;
  DevicePtr device;

  bool wanted() const { return leaf || producer != nullptr; }
};
/// Returns the edge that would connect a node computed from `tensor`. Holding the edge keeps the
/// graph behind the tensor alive without its elements.
Edge edge_to(const Tensor& tensor);
/// Makes `tensor`, which has no history, the result that `edge` leads to. The tensor holds that
/// result's elements, which were stored elsewhere in the meantime (offloaded activations).
void reconnect(const Tensor& tensor, const Edge& edge);

/// One backward step. An op derives from it, keeps what the step needs and lists it in saved().
class Node {
 public:
  virtual ~Node() = default;

  virtual std::string_view name() const = 0;
  virtual std::vector<SavedTensor> saved() const = 0;
  /// Hands the gradients of the inputs to `pass`. grad_outputs[i] is the gradient of output i, or
  /// none if no gradient reached it. Called once; the saved tensors are released afterwards.
  virtual void backward(std::span<const Tensor> grad_outputs, Backward& pass) = 0;

  const std::vector<Edge>& inputs() const { return inputs_; }

 private:
  friend class Backward;
  friend void attach(const std::shared_ptr<Node>&, const std::vector<Tensor>&,
                     std::span<Tensor* const>);
  std::vector<Edge> inputs_;
  std::size_t outputs_ = 0;  ///< 0 once the node has run
};

/// A buffer that a backward step writes to directly, such as a matrix product that adds to the
/// gradient of its weight.
struct GradientTarget {
  Tensor tensor;
  bool accumulate = false;  ///< true: add to the contents; false: overwrite all of them
};

/// One run of backward() over a graph. It collects the gradients of a node until the node runs.
class Backward {
 public:
  /// True if input i of the running node wants a gradient.
  bool wants(std::size_t input) const;

  /// Hands over a finished gradient. It may share memory with other tensors and is never written
  /// to afterwards.
  void give(std::size_t input, const Tensor& gradient);

  /// Returns the buffer to which the gradient of input i is to be written or added. Its dtype is
  /// `dtype`, or that of the leaf's own buffer if the leaf has one.
  GradientTarget target(std::size_t input, DType dtype);

  /// Records the graph of `function` and puts it in the place of the running node: the node's
  /// output gradients go to the function's results, and the pass continues as if the new graph had
  /// been there from the start. The leaves of the new graph must be among the node's inputs,
  /// because the gradient-ready hooks count visits to leaves.
  void replace(const std::function<std::vector<Tensor>()>& function,
               std::span<const Tensor> grad_outputs);

 private:
  friend void backward(const Edge& output, const Tensor& gradient);
  void walk(const Edge& output, const Tensor& gradient);
  void enter(std::span<const Edge> outputs, std::span<const Tensor> gradients);
  void deliver(const Edge& edge, const Tensor& gradient);
  GradientTarget target(const Edge& edge, DType dtype);

  struct State;
  State* state_ = nullptr;
};

/// Runs the graph behind `output` backward and adds to the gradients of its leaves. `gradient` is
/// the gradient of `output`; none means 1 and needs a single element. The graph is used up.
void backward(const Tensor& output, const Tensor& gradient = {});
/// Same, from the edge to an output whose elements may have been released.
void backward(const Edge& output, const Tensor& gradient);

/// Makes `outputs` results of `node` if recording is on and an input requires a gradient.
void attach(const std::shared_ptr<Node>& node, const std::vector<Tensor>& inputs,
            std::span<Tensor* const> outputs);
void attach(const std::shared_ptr<Node>& node, const std::vector<Tensor>& inputs, Tensor& output);
/// True if a result of these inputs must be differentiable. Ops save tensors only then.
bool recording(std::initializer_list<Tensor> inputs);
bool recording(std::span<const Tensor> inputs);

/// While an object of this class lives, ops on this thread record nothing (evaluation, generation).
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool previous_;
};

/// A tensor that the graph behind `output` keeps alive, with the name of the node that saved it.
struct KeptTensor {
  std::string_view node;
  SavedTensor saved;
};
std::vector<KeptTensor> kept_tensors(const Tensor& output);

// --- leaves ---

/// Makes gradients of `leaf` go to `buffer` (same shape) instead of memory allocated for them.
void set_gradient_buffer(const Tensor& leaf, const Tensor& buffer);
/// Sets the hook that backward() calls as soon as the leaf's gradient of that pass is complete.
void set_gradient_ready_hook(const Tensor& leaf, std::function<void()> hook);
/// Makes the next contribution overwrite the gradient instead of adding to it.
void forget_gradient(const Tensor& leaf);
/// Returns the buffer for a gradient of `leaf` that is written or added outside of a backward pass.
GradientTarget leaf_gradient_target(const Tensor& leaf, DType dtype);
/// Zeroes the gradient buffer of a leaf if no contribution has reached it.
void zero_unused_gradient(const Tensor& leaf);

}  // namespace sluice
