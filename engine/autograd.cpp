#include "engine/autograd.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "kernels/base/run.h"
#include "kernels/elementwise.h"

namespace sluice {
namespace {

thread_local bool grad_enabled = true;

void add_into(const Tensor& target, const Tensor& gradient) {
  Tensor same_dtype = gradient;
  if (gradient.dtype() != target.dtype()) {
    same_dtype = Tensor::empty(target.device(), target.shape(), target.dtype());
    run(Cast{.out = same_dtype.view(), .in = gradient.view()}, target.stream());
  }
  run(Add{.out = target.view(), .a = target.view(), .b = same_dtype.view()}, target.stream());
}

}  // namespace

/// Gradients on their way to nodes that have not run yet, and how often each leaf is still to be
/// visited.
struct Backward::State {
  struct Slot {
    Tensor gradient;
    bool owned = false;  ///< made here, so it may be added to in place
  };
  std::unordered_map<Node*, std::vector<Slot>> pending;
  std::unordered_map<TensorImpl*, int> visits_left;
  Node* current = nullptr;
};

namespace {

/// Producers before consumers, by depth-first search without recursion. The order depends only
/// on how the graph was built.
std::vector<std::shared_ptr<Node>> topological_order(const std::shared_ptr<Node>& root) {
  std::vector<std::shared_ptr<Node>> order;
  std::unordered_set<Node*> seen{root.get()};
  struct Frame {
    std::shared_ptr<Node> node;
    std::size_t next = 0;
  };
  std::vector<Frame> stack{{root}};
  while (!stack.empty()) {
    Frame& frame = stack.back();
    if (frame.next == frame.node->inputs().size()) {
      order.push_back(std::move(frame.node));
      stack.pop_back();
      continue;
    }
    const Tensor& input = frame.node->inputs()[frame.next++];
    if (!input) continue;
    const auto& producer = input.impl()->producer;
    if (producer && seen.insert(producer.get()).second) stack.push_back({producer});
  }
  return order;
}

}  // namespace

bool Backward::wants(std::size_t input) const {
  return state_->current->inputs_[input].requires_grad();
}

void Backward::give(std::size_t input, const Tensor& gradient) {
  if (!wants(input)) return;
  const Tensor& tensor = state_->current->inputs_[input];
  if (gradient.shape() != tensor.shape())
    fail(fmt::format("{} gave a gradient of shape {} to a tensor of shape {}",
                     state_->current->name(), to_string(gradient.shape()),
                     to_string(tensor.shape())));
  if (const auto& producer = tensor.impl()->producer) {
    auto& slots = state_->pending[producer.get()];
    slots.resize(producer->outputs_);
    auto& slot = slots[tensor.impl()->producer_output];
    if (!slot.gradient) {
      slot = {gradient, false};
    } else if (slot.owned) {
      add_into(slot.gradient, gradient);
    } else {
      Tensor sum = Tensor::empty(gradient.device(), gradient.shape(), gradient.dtype());
      run(Add{.out = sum.view(), .a = slot.gradient.view(), .b = gradient.view()}, sum.stream());
      slot = {sum, true};
    }
    return;
  }
  const GradientTarget leaf = target(input, gradient.dtype());
  if (leaf.accumulate)
    add_into(leaf.tensor, gradient);
  else
    run(Cast{.out = leaf.tensor.view(), .in = gradient.view()}, gradient.stream());
}

GradientTarget Backward::target(std::size_t input, DType dtype) {
  const Tensor& tensor = state_->current->inputs_[input];
  if (const auto& producer = tensor.impl()->producer) {
    auto& slots = state_->pending[producer.get()];
    slots.resize(producer->outputs_);
    auto& slot = slots[tensor.impl()->producer_output];
    if (slot.gradient && !slot.owned) {
      Tensor copy = Tensor::empty(tensor.device(), tensor.shape(), slot.gradient.dtype());
      run(Cast{.out = copy.view(), .in = slot.gradient.view()}, copy.stream());
      slot = {copy, true};
    }
    if (slot.gradient) return {slot.gradient, true};
    slot = {Tensor::empty(tensor.device(), tensor.shape(), dtype), true};
    return {slot.gradient, false};
  }
  return leaf_gradient_target(tensor, dtype);
}

void Backward::arrived(const Tensor& leaf) {
  if (--state_->visits_left[leaf.impl()] == 0 && leaf.impl()->gradient.ready)
    leaf.impl()->gradient.ready();
}

void Backward::walk(const Tensor& output, const Tensor& gradient) {
  const NoGrad no_grad;
  State state;
  state_ = &state;
  const auto& root = output.impl()->producer;
  auto order = topological_order(root);
  for (const auto& node : order)
    for (const Tensor& input : node->inputs_)
      if (input.requires_grad() && !input.impl()->producer) ++state.visits_left[input.impl()];
  state.pending[root.get()].resize(root->outputs_);
  state.pending[root.get()][output.impl()->producer_output] = {gradient, false};
  while (!order.empty()) {
    const auto node = std::move(order.back());
    order.pop_back();
    auto slots = std::move(state.pending[node.get()]);
    state.pending.erase(node.get());
    std::vector<Tensor> gradients(node->outputs_);
    bool reached = false;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      gradients[i] = std::move(slots[i].gradient);
      reached = reached || gradients[i];
    }
    slots.clear();
    state.current = node.get();
    if (reached) node->backward(gradients, *this);
    const auto inputs = std::move(node->inputs_);
    node->inputs_.clear();
    for (const Tensor& input : inputs)
      if (input.requires_grad() && !input.impl()->producer) arrived(input);
  }
  state_ = nullptr;
}

void backward(const Tensor& output, const Tensor& gradient) {
  check(output && output.impl()->producer != nullptr,
        "backward() needs a tensor that was computed from one that requires a gradient");
  check(!gradient || (gradient.shape() == output.shape() && gradient.dtype() == output.dtype()),
        "the gradient given to backward() must have the shape and dtype of its tensor");
  Tensor seed = gradient;
  if (!seed) {
    check(output.size() == 1, "backward() without a gradient needs a single number");
    seed = Tensor::empty(output.device(), output.shape(), output.dtype());
    run(Fill{.out = seed.view(), .value = 1}, seed.stream());
  }
  Backward().walk(output, seed);
}

void attach(const std::shared_ptr<Node>& node, std::vector<Tensor> inputs,
            std::span<Tensor* const> outputs) {
  const bool wanted = std::ranges::any_of(inputs, &Tensor::requires_grad);
  if (!grad_enabled || !wanted) return;
  node->inputs_ = std::move(inputs);
  node->outputs_ = outputs.size();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    TensorImpl& impl = *outputs[i]->impl();
    impl.requires_grad = true;
    impl.producer = node;
    impl.producer_output = i;
  }
}

bool recording(std::initializer_list<Tensor> inputs) {
  if (!grad_enabled) return false;
  for (const Tensor& input : inputs)
    if (input.requires_grad()) return true;
  return false;
}

NoGrad::NoGrad() : previous_(grad_enabled) {
  grad_enabled = false;
}

NoGrad::~NoGrad() {
  grad_enabled = previous_;
}

std::vector<KeptTensor> kept_tensors(const Tensor& output) {
  std::vector<KeptTensor> kept;
  if (!output.impl()->producer) return kept;
  for (const auto& node : topological_order(output.impl()->producer))
    for (const auto& saved : node->saved())
      kept.push_back({node->name(), saved});
  return kept;
}

void set_gradient_buffer(const Tensor& leaf, const Tensor& buffer) {
  check(leaf.shape() == buffer.shape(), "a gradient buffer must have the shape of its tensor");
  leaf.impl()->gradient.tensor = buffer;
  leaf.impl()->gradient.filled = false;
}

void set_gradient_ready_hook(const Tensor& leaf, std::function<void()> hook) {
  leaf.impl()->gradient.ready = std::move(hook);
}

void forget_gradient(const Tensor& leaf) {
  leaf.impl()->gradient.filled = false;
}

GradientTarget leaf_gradient_target(const Tensor& leaf, DType dtype) {
  check(leaf.impl()->producer == nullptr, "only a leaf collects a gradient");
  auto& gradient = leaf.impl()->gradient;
  if (!gradient.tensor) gradient.tensor = Tensor::empty(leaf.device(), leaf.shape(), dtype);
  const bool accumulate = gradient.filled;
  gradient.filled = true;
  return {gradient.tensor, accumulate};
}

void settle_gradient(const Tensor& leaf) {
  auto& gradient = leaf.impl()->gradient;
  if (gradient.filled || !gradient.tensor) return;
  gradient.tensor.fill_zero();
  gradient.filled = true;
}

}  // namespace sluice
