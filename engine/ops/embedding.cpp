#include "engine/ops/embedding.h"

#include <fmt/format.h>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/embedding.h"

namespace sluice {
namespace {

class EmbeddingNode final : public Node {
 public:
  EmbeddingNode(Tensor tokens, std::int64_t first_position)
      : tokens_(std::move(tokens)), first_position_(first_position) {}

  std::string_view name() const override { return "embedding"; }
  std::vector<SavedTensor> saved() const override { return {{"tokens", tokens_}}; }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const Tensor& grad_out = grad_outputs[0];
    const DType sums = accumulator_of(grad_out.dtype());
    EmbeddingBackward op{
        .grad_out = grad_out.view(), .tokens = tokens_.view(), .first_position = first_position_};
    if (pass.wants(0)) op.grad_token_table = zeroed_target(0, sums, pass);
    if (pass.wants(1)) op.grad_position_table = zeroed_target(1, sums, pass);
    run(op, grad_out.stream());
  }

 private:
  /// The kernel adds rows, so a buffer that holds nothing yet starts from zero.
  static View zeroed_target(std::size_t input, DType dtype, Backward& pass) {
    const auto target = pass.target(input, dtype);
    if (!target.accumulate) target.tensor.fill_zero();
    return target.tensor.view();
  }

  Tensor tokens_;
  std::int64_t first_position_;
};

}  // namespace

Tensor embedding(const Tensor& tokens, const Tensor& token_table, const Tensor& position_table,
                 std::int64_t first_position) {
  if (first_position + tokens.dim(1) > position_table.dim(0))
    fail(fmt::format("a sequence of {} tokens at position {} is longer than the model's context of "
                     "{}",
                     tokens.dim(1), first_position, position_table.dim(0)),
         ErrorKind::usage);
  Tensor out = Tensor::empty(tokens.device(), {tokens.dim(0), tokens.dim(1), token_table.dim(1)},
                             token_table.dtype());
  run(EmbeddingForward{.out = out.view(),
                       .tokens = tokens.view(),
                       .token_table = token_table.view(),
                       .position_table = position_table.view(),
                       .first_position = first_position},
      tokens.stream());
  if (recording({token_table, position_table})) {
    Tensor* const outputs[] = {&out};
    attach(std::make_shared<EmbeddingNode>(tokens, first_position), {token_table, position_table},
           outputs);
  }
  return out;
}

}  // namespace sluice
