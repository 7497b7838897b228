#include "engine/ops/linear_cross_entropy.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/cross_entropy.h"
#include "kernels/gemm.h"
#include "kernels/reduce.h"

namespace sluice {
namespace {

/// All is computed by the time it exists; it only passes the gradient of `hidden` on.
class LinearCrossEntropyNode final : public Node {
 public:
  explicit LinearCrossEntropyNode(Tensor grad_hidden) : grad_hidden_(std::move(grad_hidden)) {}

  std::string_view name() const override { return "linear_cross_entropy"; }
  std::vector<SavedTensor> saved() const override { return {{"grad_hidden", grad_hidden_}}; }

  void backward(std::span<const Tensor>, Backward& pass) override {
    pass.give(0, std::exchange(grad_hidden_, {}));
  }

 private:
  Tensor grad_hidden_;
};

}  // namespace

LinearCrossEntropy linear_cross_entropy(const Tensor& hidden, const Tensor& table,
                                        const Tensor& targets,
                                        const LinearCrossEntropyOptions& options) {
  const std::int64_t width = table.dim(1);
  const std::int64_t vocabulary = table.dim(0);
  const std::int64_t rows = hidden.size() / width;
  if (hidden.dim(-1) != width || targets.size() != rows)
    fail(fmt::format("linear_cross_entropy: hidden {}, table {} and targets {} do not fit together",
                     to_string(hidden.shape()), to_string(table.shape()),
                     to_string(targets.shape())));
  check(options.chunk > 0, "the vocabulary head needs chunks of at least one token");
  const DevicePtr& device = hidden.device();
  const Stream stream = hidden.stream();
  const DType sums = accumulator_of(hidden.dtype());
  LinearCrossEntropy result{Tensor::empty(device, {1}, sums), Tensor::empty(device, {rows}, sums)};
  const bool record = recording({hidden, table});
  Tensor grad_hidden;
  if (record && hidden.requires_grad())
    grad_hidden = Tensor::empty(device, hidden.shape(), hidden.dtype());

  const std::int64_t chunk = std::min(options.chunk, rows);
  // Logits are f32 also in 16-bit training: rounding them costs more than all other rounding of
  // the loss together. Their gradient takes their place, in the dtype of the products to come.
  // Rows are padded, so that GPUs can read them in wide pieces.
  constexpr std::int64_t multiple = 64;
  const std::int64_t padded = (vocabulary + multiple - 1) / multiple * multiple;
  const Tensor buffer = [&] {
    const MemoryScope scope(*device, MemoryUse::head);
    return Tensor::empty(device, {chunk, padded}, sums);
  }();
  const auto narrow = static_cast<std::int64_t>(size_of(sums) / size_of(hidden.dtype()));
  for (std::int64_t first = 0; first < rows; first += chunk) {
    const std::int64_t count = std::min(chunk, rows - first);
    const View inputs = hidden.slice(first * width, {count, width}).view();
    View logits(buffer.view().address, sums, {count, vocabulary});
    logits.strides[0] = padded;
    View grad_logits(logits.address, hidden.dtype(), {count, vocabulary});
    grad_logits.strides[0] = narrow * padded;
    run(Gemm{.out = logits,
             .a = inputs,
             .b = table.view(),
             .transpose_b = true,
             .tf32 = device->tf32()},
        stream);
    run(CrossEntropy{.losses = result.losses.slice(first, {count}).view(),
                     .logits = logits,
                     .gradient = record ? grad_logits : View{},
                     .targets = targets.slice(first, {count}).view(),
                     .gradient_scale = options.scale * options.loss_scale,
                     .padding = padded - vocabulary},
        stream);
    if (grad_hidden)
      run(Gemm{.out = grad_hidden.slice(first * width, {count, width}).view(),
               .a = grad_logits,
               .b = table.view(),
               .tf32 = device->tf32()},
          stream);
    if (record && table.requires_grad()) {
      const auto target = leaf_gradient_target(table, sums);
      run(Gemm{.out = target.tensor.view(),
               .a = grad_logits,
               .b = inputs,
               .transpose_a = true,
               .accumulate = target.accumulate,
               .tf32 = device->tf32()},
          stream);
    }
  }
  run(Sum{.out = result.loss.view(), .in = result.losses.view(), .scale = options.scale}, stream);
  if (record) {
    Tensor* const outputs[] = {&result.loss};
    attach(std::make_shared<LinearCrossEntropyNode>(grad_hidden), {hidden, table}, outputs);
  }
  return result;
}

}  // namespace sluice
