#include "engine/autograd.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/observer.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"

namespace sluice {
namespace {

thread_local bool grad_enabled = true;
thread_local Observer* observer = nullptr;

void add_into(const Tensor& target, const Tensor& gradient) {
  Tensor same_dtype = gradient;
  if (gradient.dtype() != target.dtype()) {
    same_dtype = Tensor::empty_like(target);
    run(Cast{.out = same_dtype.view(), .in = gradient.view()}, target.stream());
  }
  run(Add{.out = target.view(), .a = target.view(), .b = same_dtype.view()}, target.stream());
}

}  // namespace

/// Gradients that wait for nodes that have not run yet, and how often each leaf is still to be
/// visited.
struct Backward::State {
  struct Slot {
    Tensor gradient;
    bool owned = false;  ///< allocated here, so it may be added to in place
  };
  std::vector<std::shared_ptr<Node>> order;  ///< nodes still to run; the last one runs next
  std::unordered_set<Node*> waiting;         ///< the same nodes as a set
  std::unordered_map<Node*, std::vector<Slot>> pending;
  std::unordered_map<TensorImpl*, int> visits_left;
  Node* current = nullptr;

  Slot& slot(const Edge& edge) {
    check(edge.producer->outputs_ > 0, "backward() has used up a part of this graph already");
    auto& slots = pending[edge.producer.get()];
    slots.resize(edge.producer->outputs_);
    return slots[edge.output];
  }

  /// The gradient that has arrived so far at `edge`; none if nothing has.
  Tensor delivered(const Edge& edge) const {
    if (edge.leaf) {
      const auto& gradient = edge.leaf.impl()->gradient;
      return gradient.filled ? gradient.tensor : Tensor();
    }
    const auto slots = pending.find(edge.producer.get());
    if (slots == pending.end() || slots->second.size() <= edge.output) return {};
    return slots->second[edge.output].gradient;
  }
  void show(const Node& node) const {
    for (const Edge& edge : node.inputs())
      if (const Tensor gradient = delivered(edge)) observer->handed_over(node, edge, gradient);
  }
};

namespace {

class Recording {
 public:
  Recording() { grad_enabled = true; }
  ~Recording() { grad_enabled = previous_; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  bool previous_ = grad_enabled;
};

/// Returns the nodes behind `roots` that are not in `seen` yet, producers before consumers, by
/// depth-first search without recursion. The order depends only on how the graph was built.
std::vector<std::shared_ptr<Node>> topological_order(std::span<const Edge> roots,
                                                     std::unordered_set<Node*>& seen) {
  std::vector<std::shared_ptr<Node>> order;
  struct Frame {
    std::shared_ptr<Node> node;
    std::size_t next = 0;
  };
  std::vector<Frame> stack;
  const auto visit = [&](const Edge& edge) {
    if (edge.producer && seen.insert(edge.producer.get()).second) stack.push_back({edge.producer});
  };
  for (const Edge& root : roots) {
    visit(root);
    while (!stack.empty()) {
      Frame& frame = stack.back();
      if (frame.next < frame.node->inputs().size()) {
        visit(frame.node->inputs()[frame.next++]);
        continue;
      }
      order.push_back(std::move(frame.node));
      stack.pop_back();
    }
  }
  return order;
}

}  // namespace

Edge edge_to(const Tensor& tensor) {
  if (!tensor.requires_grad()) return {};
  const TensorImpl& impl = *tensor.impl();
  return {.leaf = impl.producer ? Tensor() : tensor,
          .producer = impl.producer,
          .output = impl.producer_output,
          .shape = impl.shape,
          .device = tensor.device()};
}

void reconnect(const Tensor& tensor, const Edge& edge) {
  check(edge.producer != nullptr && edge.shape == tensor.shape(),
        "elements came back to another result than they had left");
  TensorImpl& impl = *tensor.impl();
  impl.requires_grad = true;
  impl.producer = edge.producer;
  impl.producer_output = edge.output;
}

bool Backward::wants(std::size_t input) const {
  return state_->current->inputs_[input].wanted();
}

void Backward::give(std::size_t input, const Tensor& gradient) {
  if (wants(input)) deliver(state_->current->inputs_[input], gradient);
}

void Backward::deliver(const Edge& edge, const Tensor& gradient) {
  if (gradient.shape() != edge.shape)
    fail(fmt::format("{} gave a gradient of shape {} to a tensor of shape {}",
                     state_->current ? state_->current->name() : "backward()",
                     to_string(gradient.shape()), to_string(edge.shape)));
  if (edge.producer) {
    auto& slot = state_->slot(edge);
    if (!slot.gradient) {
      slot = {gradient, false};
    } else if (slot.owned) {
      add_into(slot.gradient, gradient);
    } else {
      Tensor sum = Tensor::empty_like(gradient);
      run(Add{.out = sum.view(), .a = slot.gradient.view(), .b = gradient.view()}, sum.stream());
      slot = {sum, true};
    }
    return;
  }
  const GradientTarget leaf = target(edge, gradient.dtype());
  if (leaf.accumulate)
    add_into(leaf.tensor, gradient);
  else
    run(Cast{.out = leaf.tensor.view(), .in = gradient.view()}, gradient.stream());
}

GradientTarget Backward::target(std::size_t input, DType dtype) {
  return target(state_->current->inputs_[input], dtype);
}

GradientTarget Backward::target(const Edge& edge, DType dtype) {
  if (!edge.producer) return leaf_gradient_target(edge.leaf, dtype);
  auto& slot = state_->slot(edge);
  if (slot.gradient && !slot.owned) {
    Tensor copy = Tensor::empty(edge.device, edge.shape, slot.gradient.dtype());
    run(Cast{.out = copy.view(), .in = slot.gradient.view()}, copy.stream());
    slot = {copy, true};
  }
  if (slot.gradient) return {slot.gradient, true};
  slot = {Tensor::empty(edge.device, edge.shape, dtype), true};
  return {slot.gradient, false};
}

void Backward::contribute(std::size_t input, DType dtype, const WriteGradient& write) {
  const Edge& edge = state_->current->inputs_[input];
  // An observer is to see the gradients of a node as soon as it has run.
  const bool defers = deferred_ != nullptr && edge.leaf && observer == nullptr;
  if (!defers) return write(target(edge, dtype));
  deferred_->waiting_.push_back({edge.leaf, dtype, write});
  ++deferred_->left_[edge.leaf.impl()];
}

void Backward::replace(const std::function<std::vector<Tensor>()>& function,
                       std::span<const Tensor> grad_outputs) {
  const auto outputs = [&] {
    const Recording recording;
    return function();
  }();
  std::vector<Edge> edges;
  std::ranges::transform(outputs, std::back_inserter(edges), edge_to);
  enter(edges, grad_outputs);
}

void Backward::enter(std::span<const Edge> outputs, std::span<const Tensor> gradients) {
  State& state = *state_;
  std::vector<Edge> roots;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Edge& edge = outputs[i];
    if (!gradients[i] || !edge.wanted()) continue;
    deliver(edge, gradients[i]);
    roots.push_back(edge);
  }
  const auto is_given = [&](const Edge& edge) {
    return std::ranges::any_of(state.current->inputs_, [&](const Edge& input) {
      return input.leaf && input.leaf.same_as(edge.leaf);
    });
  };
  for (auto& node : topological_order(roots, state.waiting)) {
    for (const Edge& edge : node->inputs_) {
      if (!edge.leaf) continue;
      if (state.current != nullptr && !is_given(edge))
        fail(fmt::format("{} computes with a leaf of shape {} that it was not given",
                         state.current->name(), to_string(edge.shape)));
      ++state.visits_left[edge.leaf.impl()];
    }
    state.order.push_back(std::move(node));
  }
}

void Backward::walk(const Edge& output, const Tensor& gradient) {
  const NoGrad no_grad;
  State state;
  state_ = &state;
  enter({&output, 1}, {&gradient, 1});
  while (!state.order.empty()) {
    const auto node = std::move(state.order.back());
    state.order.pop_back();
    state.waiting.erase(node.get());
    auto slots = std::move(state.pending[node.get()]);
    state.pending.erase(node.get());
    std::vector<Tensor> gradients(std::exchange(node->outputs_, 0));
    bool reached = false;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      gradients[i] = std::move(slots[i].gradient);
      reached = reached || gradients[i];
    }
    slots.clear();
    state.current = node.get();
    if (reached) node->backward(gradients, *this);
    if (reached && observer != nullptr) state.show(*node);
    const auto inputs = std::exchange(node->inputs_, {});
    for (const Edge& input : inputs) {
      if (!input.leaf || --state.visits_left[input.leaf.impl()] > 0) continue;
      if (deferred_ != nullptr && deferred_->holds(input.leaf)) continue;
      if (const auto& ready = input.leaf.impl()->gradient.ready) ready();
    }
  }
  state_ = nullptr;
}

void backward(const Tensor& output, const Tensor& gradient, DeferredGradients* deferred) {
  check(output && output.impl()->producer != nullptr,
        "backward() needs a tensor that was computed from one that requires a gradient");
  check(!gradient || (gradient.shape() == output.shape() && gradient.dtype() == output.dtype()),
        "the gradient given to backward() must have the shape and dtype of its tensor");
  Tensor seed = gradient;
  if (!seed) {
    check(output.size() == 1, "backward() without a gradient needs a single number");
    seed = Tensor::empty_like(output);
    run(Fill{.out = seed.view(), .value = 1}, seed.stream());
  }
  backward(edge_to(output), seed, deferred);
}

void backward(const Edge& output, const Tensor& gradient, DeferredGradients* deferred) {
  check(output.producer != nullptr && gradient && gradient.shape() == output.shape,
        "backward() needs a result that was recorded and a gradient of its shape");
  Backward pass;
  pass.deferred_ = deferred;
  pass.walk(output, gradient);
}

void attach(const std::shared_ptr<Node>& node, const std::vector<Tensor>& inputs,
            std::span<Tensor* const> outputs) {
  if (!recording(inputs)) return;
  for (const Tensor& input : inputs)
    node->inputs_.push_back(edge_to(input));
  node->outputs_ = outputs.size();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    TensorImpl& impl = *outputs[i]->impl();
    impl.requires_grad = true;
    impl.producer = node;
    impl.producer_output = i;
  }
  if (observer != nullptr) observer->computed(*node, outputs);
}

void attach(const std::shared_ptr<Node>& node, const std::vector<Tensor>& inputs, Tensor& output) {
  Tensor* const outputs[] = {&output};
  attach(node, inputs, outputs);
}

bool recording(std::span<const Tensor> inputs) {
  return grad_enabled && std::ranges::any_of(inputs, &Tensor::requires_grad);
}

bool recording(std::initializer_list<Tensor> inputs) {
  return recording(std::span(inputs.begin(), inputs.size()));
}

Observed::Observed(Observer& looking) : previous_(observer) {
  observer = &looking;
}

Observed::~Observed() {
  observer = previous_;
}

NoGrad::NoGrad() : previous_(grad_enabled) {
  grad_enabled = false;
}

NoGrad::~NoGrad() {
  grad_enabled = previous_;
}

std::vector<KeptTensor> kept_tensors(const Tensor& output) {
  std::vector<KeptTensor> kept;
  const Edge root = edge_to(output);
  std::unordered_set<Node*> seen;
  for (const auto& node : topological_order({&root, 1}, seen))
    for (const auto& saved : node->saved())
      kept.push_back({node->name(), saved});
  return kept;
}

void set_gradient_buffer(const Tensor& leaf, const Tensor& buffer) {
  check(leaf.shape() == buffer.shape(), "a gradient buffer must have the shape of its tensor");
  leaf.impl()->gradient.tensor = buffer;
  leaf.impl()->gradient.filled = false;
}

void set_gradient_begin_hook(const Tensor& leaf, std::function<void()> hook) {
  leaf.impl()->gradient.begin = std::move(hook);
}

void set_gradient_ready_hook(const Tensor& leaf, std::function<void()> hook) {
  leaf.impl()->gradient.ready = std::move(hook);
}

bool has_gradient(const Tensor& leaf) {
  return leaf.impl()->gradient.filled;
}

void forget_gradient(const Tensor& leaf) {
  leaf.impl()->gradient.filled = false;
}

GradientTarget leaf_gradient_target(const Tensor& leaf, DType dtype) {
  check(leaf.impl()->producer == nullptr, "only a leaf collects a gradient");
  auto& gradient = leaf.impl()->gradient;
  if (!gradient.tensor) gradient.tensor = Tensor::empty(leaf.device(), leaf.shape(), dtype);
  const bool accumulate = gradient.filled;
  if (!accumulate && gradient.begin) gradient.begin();
  gradient.filled = true;
  return {gradient.tensor, accumulate};
}

void zero_unused_gradient(const Tensor& leaf) {
  auto& gradient = leaf.impl()->gradient;
  if (gradient.filled || !gradient.tensor) return;
  gradient.tensor.with_spare_rows().fill_zero();
  gradient.filled = true;
}

void DeferredGradients::add(bool complete) {
  while (!waiting_.empty()) {
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    next.write(leaf_gradient_target(next.leaf, next.dtype));
    const auto left = left_.find(next.leaf.impl());
    if (--left->second > 0) continue;
    left_.erase(left);
    if (const auto& ready = next.leaf.impl()->gradient.ready; complete && ready) ready();
  }
}

}  // namespace sluice
