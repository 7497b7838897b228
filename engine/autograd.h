#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/leaf_gradient.h"
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

  /// Has `write` write or add the gradient of input i to its target. In a pass that defers, that of
  /// a leaf is left for later, so `write` must hold the tensors that it needs.
  void contribute(std::size_t input, DType dtype, const WriteGradient& write);

  /// Records the graph of `function` and puts it in the place of the running node: the node's
  /// output gradients go to the function's results, and the pass continues as if the new graph had
  /// been there from the start. The leaves of the new graph must be among the node's inputs,
  /// because the gradient-ready hooks count visits to leaves.
  void replace(const std::function<std::vector<Tensor>()>& function,
               std::span<const Tensor> grad_outputs);

 private:
  friend void backward(const Edge&, const Tensor&, DeferredGradients*);
  void walk(const Edge& output, const Tensor& gradient);
  void enter(std::span<const Edge> outputs, std::span<const Tensor> gradients);
  void deliver(const Edge& edge, const Tensor& gradient);
  GradientTarget target(const Edge& edge, DType dtype);

  struct State;
  State* state_ = nullptr;
  DeferredGradients* deferred_ = nullptr;
};

/// Runs the graph behind `output` backward and adds to the gradients of its leaves. `gradient` is
/// the gradient of `output`; none means 1 and needs a single element. The graph is used up.
/// `deferred`: takes the gradients that nodes contribute() to leaves; null: nothing is deferred.
void backward(const Tensor& output, const Tensor& gradient = {},
              DeferredGradients* deferred = nullptr);
/// Same, from the edge to an output whose elements may have been released.
void backward(const Edge& output, const Tensor& gradient, DeferredGradients* deferred = nullptr);

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

}  // namespace sluice
