#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/tensor.h"

namespace sluice {

/// A tensor that a Node keeps from the forward pass, by name, so that what a graph holds can be
/// listed and counted.
struct SavedTensor {
  std::string_view name;
  Tensor tensor;
};

class Backward;
class Node;

/// Where the gradient of a node's input goes: to a leaf, to the node that the input came from, or
/// nowhere. It holds no elements: what a backward step needs, it saves.
struct Edge {
  Tensor leaf;
  std::shared_ptr<Node> producer;
  std::size_t output = 0;  ///< of the producer
  Shape shape;
  DevicePtr device;

  bool wanted() const { return leaf || producer != nullptr; }
};
/// The edge by which a node that computed from `tensor` would be connected: to keep the graph
/// behind it without its elements.
Edge edge_to(const Tensor& tensor);
/// Makes `tensor`, which has no history, the result that `edge` leads to, and to which the elements
/// belonged before they were somewhere else.
void reconnect(const Tensor& tensor, const Edge& edge);

/// One backward step. The op's own file derives it, keeps what it needs and says so in `saved`.
class Node {
 public:
  virtual ~Node() = default;

  virtual std::string_view name() const = 0;
  virtual std::vector<SavedTensor> saved() const = 0;
  /// Hands the gradients of the inputs to `pass`. grad_outputs[i] belongs to output i, none if
  /// nothing reached it. Called once; what was saved is released afterwards.
  virtual void backward(std::span<const Tensor> grad_outputs, Backward& pass) = 0;

  const std::vector<Edge>& inputs() const { return inputs_; }

 private:
  friend class Backward;
  friend void attach(const std::shared_ptr<Node>&, const std::vector<Tensor>&,
                     std::span<Tensor* const>);
  std::vector<Edge> inputs_;
  std::size_t outputs_ = 0;  ///< none once it has run
};

/// A buffer that a backward step writes to directly, such as a matrix product that adds to the
/// gradient of its weight.
struct GradientTarget {
  Tensor tensor;
  bool accumulate = false;  ///< add to what is there; otherwise overwrite all of it
};

/// One run of backward() over a graph: collects gradients until a node's turn comes.
class Backward {
 public:
  /// Whether input i of the node that is running wants a gradient at all.
  bool wants(std::size_t input) const;

  /// Hands over a finished gradient. It may share memory with other tensors and is never written
  /// to afterwards.
  void give(std::size_t input, const Tensor& gradient);

  /// The place to write or add the gradient of input i, in `dtype` (that of the leaf's own buffer
  /// if it has one).
  GradientTarget target(std::size_t input, DType dtype);

  /// Records what `function` computes and puts it in the place of the node that is running, whose
  /// gradients go to the function's results: the pass goes on with the new graph as if it had been
  /// there from the start. Its leaves must be among the node's inputs, so that the ready hooks knew
  /// of them.
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

/// Runs the graph behind `output` backwards and adds to the gradients of its leaves. `gradient` is
/// that of the output; none means 1 for a single element. The graph is used up.
void backward(const Tensor& output, const Tensor& gradient = {});
/// The same from the edge to an output whose elements may be gone.
void backward(const Edge& output, const Tensor& gradient);

/// Makes `outputs` results of `node` if recording is on and an input requires a gradient.
void attach(const std::shared_ptr<Node>& node, const std::vector<Tensor>& inputs,
            std::span<Tensor* const> outputs);
/// True if a result of these inputs must be differentiable: ops save tensors only then.
bool recording(std::initializer_list<Tensor> inputs);
bool recording(std::span<const Tensor> inputs);

/// While it lives, ops on this thread record nothing (evaluation, generation).
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool previous_;
};

/// Every tensor that the graph behind `output` keeps alive, with the name of its node.
struct KeptTensor {
  std::string_view node;
  SavedTensor saved;
};
std::vector<KeptTensor> kept_tensors(const Tensor& output);

// --- leaves ---

/// Lets gradients of `leaf` go to `buffer` (same shape), not to memory of its own.
void set_gradient_buffer(const Tensor& leaf, const Tensor& buffer);
/// Called by backward() as soon as the leaf's gradient of that pass is complete.
void set_gradient_ready_hook(const Tensor& leaf, std::function<void()> hook);
/// The next contribution overwrites instead of adding.
void forget_gradient(const Tensor& leaf);
/// Where to write or add a gradient of `leaf` at once, outside of a backward pass.
GradientTarget leaf_gradient_target(const Tensor& leaf, DType dtype);
/// Zeroes the gradient buffer of a leaf that no contribution reached.
void settle_gradient(const Tensor& leaf);

}  // namespace sluice
