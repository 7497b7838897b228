#include "engine/ops/checkpoint.h"

#include "engine/autograd.h"

namespace sluice {
namespace {

/// An input between the passes: kept on the device, or on the host stack.
struct KeptInput {
  Tensor tensor;
  HostStack::Ticket ticket{};
};

/// Inputs of the node: those of the function, then its leaves.
class CheckpointNode final : public Node {
 public:
  CheckpointNode(std::vector<KeptInput> inputs, CheckpointFunction function, HostStack* host)
      : kept_(std::move(inputs)), function_(std::move(function)), host_(host) {}

  std::string_view name() const override { return "checkpoint"; }
  std::vector<SavedTensor> saved() const override {
    std::vector<SavedTensor> list;
    for (const auto& [tensor, ticket] : kept_)
      if (const Tensor here = ticket ? host_->at_hand(ticket) : tensor)
        list.push_back({"input", here});
    return list;
  }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    pass.replace([this] { return function_(take_up()); }, grad_outputs);
  }

 private:
  std::vector<Tensor> take_up() {
    std::vector<Tensor> inputs(kept_.size());
    for (std::size_t i = kept_.size(); i-- > 0;) {
      auto [tensor, ticket] = std::exchange(kept_[i], {});
      if (ticket) {
        tensor = host_->take(ticket);
        reconnect(tensor, Node::inputs()[i]);
      }
      inputs[i] = std::move(tensor);
    }
    kept_.clear();
    return inputs;
  }

  std::vector<KeptInput> kept_;
  CheckpointFunction function_;
  HostStack* host_;
};

}  // namespace

std::vector<Tensor> checkpoint(std::vector<Tensor> inputs, const std::vector<Tensor>& leaves,
                               CheckpointFunction function, HostStack* host) {
  std::vector<Tensor> all = inputs;
  all.insert(all.end(), leaves.begin(), leaves.end());
  if (!recording(all)) return function(std::move(inputs));
  std::vector<KeptInput> kept;
  for (const Tensor& input : inputs) {
    const bool rests = host != nullptr && input && edge_to(input).producer != nullptr;
    kept.push_back(rests ? KeptInput{{}, host->put(input)} : KeptInput{input});
  }
  std::vector<Tensor> outputs;
  {
    const NoGrad no_grad;
    outputs = function(std::move(inputs));
  }
  std::vector<Tensor*> results;
  for (Tensor& output : outputs) {
    // An output that is itself an input must not become a result of this node.
    output = output.detach();
    results.push_back(&output);
  }
  attach(std::make_shared<CheckpointNode>(std::move(kept), std::move(function), host), all,
         results);
  return outputs;
}

}  // namespace sluice
