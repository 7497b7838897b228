#include "engine/ops/linear/linear_cross_entropy.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/reduce.h"

namespace sluice {
namespace {

/// Created when everything is computed. It only passes on the gradient of `hidden`, after the parts
/// of other ranks have been added.
class LinearCrossEntropyNode final : public Node {
 public:
  LinearCrossEntropyNode(Tensor grad_hidden, std::function<Tensor()> sum)
      : grad_hidden_(std::move(grad_hidden)), sum_(std::move(sum)) {}

  std::string_view name() const override { return "linear_cross_entropy"; }
  std::vector<SavedTensor> saved() const override {
    if (!grad_hidden_) return {};
    return {{"grad_hidden", grad_hidden_}};
  }

  void backward(std::span<const Tensor>, Backward& pass) override {
    pass.give(0, sum_ ? std::exchange(sum_, {})() : std::exchange(grad_hidden_, {}));
  }

 private:
  Tensor grad_hidden_;
  std::function<Tensor()> sum_;  ///< sum of the ranks' parts, if several have one
};

/// Computes the loss of some tokens and the gradient of their logits.
void run_loss(const View& losses, const View& logits, const View& gradient, const Tensor& targets,
              std::int64_t padding, const LinearCrossEntropyOptions& options) {
  const Stream stream = targets.stream();
  const double scale = options.scale * options.loss_scale;
  if (options.group == nullptr)
    return run(CrossEntropy{.losses = losses,
                            .logits = logits,
                            .gradient = gradient,
                            .targets = targets.view(),
                            .gradient_scale = scale,
                            .padding = padding},
               stream);
  const std::int64_t rows = logits.dim(0);
  const int ranks = options.group->size();
  const Tensor mine = Tensor::empty(targets.device(), {rows, 3}, logits.dtype);
  run(CrossEntropyPartials{.partials = mine.view(),
                           .logits = logits,
                           .targets = targets.view(),
                           .first = options.first_row},
      stream);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), mine.size());
  const Tensor all = options.group->gather(mine, counts, "softmax");
  run(CrossEntropyOfPartials{.losses = losses,
                             .logits = logits,
                             .gradient = gradient,
                             .targets = targets.view(),
                             .partials = all.view({ranks, rows, 3}),
                             .first = options.first_row,
                             .gradient_scale = scale,
                             .padding = padding},
      stream);
}

}  // namespace

LinearCrossEntropy linear_cross_entropy(const Tensor& stream_in, const Tensor& table,
                                        const Tensor& targets,
                                        const LinearCrossEntropyOptions& options) {
  TensorGroup* const group = options.group;
  const Tensor hidden =
      group != nullptr ? group->all_gather(stream_in, options.divided, "input") : stream_in;
  const std::int64_t width = table.dim(1);
  const std::int64_t vocabulary = table.dim(0);
  const std::int64_t rows = hidden.size() / width;
  if (hidden.dim(-1) != width || targets.size() != rows ||
      (options.bias && options.bias.size() != vocabulary))
    fail(fmt::format("linear_cross_entropy: hidden {}, table {} and targets {} do not fit together",
                     to_string(hidden.shape()), to_string(table.shape()),
                     to_string(targets.shape())));
  check(options.chunk > 0, "the vocabulary head needs chunks of at least one token");
  const DevicePtr& device = hidden.device();
  const Stream stream = hidden.stream();
  const DType sums = accumulator_of(hidden.dtype());
  LinearCrossEntropy result{Tensor::empty(device, {1}, sums), Tensor::empty(device, {rows}, sums)};
  const Tensor& bias = options.bias;
  const bool record = recording({stream_in, table, bias});
  Tensor grad_hidden;
  if (record && stream_in.requires_grad())
    grad_hidden = Tensor::empty(device, hidden.shape(), hidden.dtype());

  const std::int64_t chunk = std::min(options.chunk, rows);
  // Logits are f32 also in 16-bit training, because rounding them costs more accuracy than all
  // other rounding of the loss together. Their gradient overwrites them, in the dtype of the next
  // products. Rows are padded, so that GPUs can use wide loads. The products include the table's
  // spare rows: their logits are 0 and the loss ignores them; their gradient is 0.
  const Tensor rows_of_table = table.with_spare_rows();
  const std::int64_t columns = rows_of_table.dim(0);
  constexpr std::int64_t multiple = 64;
  const std::int64_t padded = (columns + multiple - 1) / multiple * multiple;
  const Tensor buffer = [&] {
    const MemoryScope scope(*device, MemoryUse::head);
    return Tensor::empty(device, {chunk, padded}, sums);
  }();
  const auto narrow = static_cast<std::int64_t>(size_of(sums) / size_of(hidden.dtype()));
  for (std::int64_t first = 0; first < rows; first += chunk) {
    const std::int64_t count = std::min(chunk, rows - first);
    const View inputs = hidden.slice(first * width, {count, width}).view();
    const auto first_columns = [&](DType dtype, std::int64_t width_of, std::int64_t stride) {
      View view(buffer.view().address, dtype, {count, width_of});
      view.strides[0] = stride;
      return view;
    };
    const View logits = first_columns(sums, vocabulary, padded);
    const View grad_logits = first_columns(hidden.dtype(), vocabulary, narrow * padded);
    const View wide_gradient = first_columns(hidden.dtype(), columns, narrow * padded);
    run(Gemm{.out = first_columns(sums, columns, padded),
             .a = inputs,
             .b = rows_of_table.view(),
             .transpose_b = true,
             .tf32 = device->tf32()},
        stream);
    if (bias) run(AddRow{.matrix = logits, .row = bias.view()}, stream);
    run_loss(result.losses.slice(first, {count}).view(), logits, record ? grad_logits : View{},
             targets.slice(first, {count}), padded - vocabulary, options);
    if (grad_hidden)
      run(Gemm{.out = grad_hidden.slice(first * width, {count, width}).view(),
               .a = wide_gradient,
               .b = rows_of_table.view(),
               .tf32 = device->tf32()},
          stream);
    if (record && table.requires_grad()) {
      const auto target = leaf_gradient_target(table, sums);
      const Tensor sum = target.tensor.with_spare_rows();
      run(Gemm{.out = sum.view(),
               .a = sum.dim(0) == columns ? wide_gradient : grad_logits,
               .b = inputs,
               .transpose_a = true,
               .accumulate = target.accumulate,
               .tf32 = device->tf32()},
          stream);
    }
    if (record && bias && bias.requires_grad()) {
      const auto target = leaf_gradient_target(bias, sums);
      run(
          ColumnSum{
              .out = target.tensor.view(), .in = grad_logits, .accumulate = target.accumulate},
          stream);
    }
  }
  std::function<Tensor()> sum;
  if (grad_hidden && group != nullptr)
    sum = group->all_reduce(std::exchange(grad_hidden, {}), options.divided, "input gradient");
  run(Sum{.out = result.loss.view(), .in = result.losses.view(), .scale = options.scale}, stream);
  if (record)
    attach(std::make_shared<LinearCrossEntropyNode>(grad_hidden, sum), {stream_in, table, bias},
           result.loss);
  return result;
}

}  // namespace sluice
