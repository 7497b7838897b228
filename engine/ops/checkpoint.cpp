#include "engine/ops/checkpoint.h"

#include "engine/autograd.h"

namespace sluice {
namespace {

/// Inputs: those of the function, then its leaves.
class CheckpointNode final : public Node {
 public:
  CheckpointNode(std::vector<Tensor> inputs, CheckpointFunction function)
      : kept_(std::move(inputs)), function_(std::move(function)) {}

  std::string_view name() const override { return "checkpoint"; }
  std::vector<SavedTensor> saved() const override {
    std::vector<SavedTensor> list;
    for (const Tensor& input : kept_)
      if (input) list.push_back({"input", input});
    return list;
  }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    pass.replace([this] { return function_(std::exchange(kept_, {})); }, grad_outputs);
  }

 private:
  std::vector<Tensor> kept_;
  CheckpointFunction function_;
};

}  // namespace

std::vector<Tensor> checkpoint(std::vector<Tensor> inputs, const std::vector<Tensor>& leaves,
                               CheckpointFunction function) {
  std::vector<Tensor> all = inputs;
  all.insert(all.end(), leaves.begin(), leaves.end());
  if (!recording(all)) return function(std::move(inputs));
  std::vector<Tensor> outputs;
  {
    const NoGrad no_grad;
    outputs = function(inputs);
  }
  std::vector<Tensor*> results;
  for (Tensor& output : outputs) {
    // An output that is an input itself must not become a result of this node.
    output = output.detach();
    results.push_back(&output);
  }
  attach(std::make_shared<CheckpointNode>(std::move(inputs), std::move(function)), all, results);
  return outputs;
}

}  // namespace sluice
