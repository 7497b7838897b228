#include "engine/ops/embedding.h"

#include <fmt/format.h>

#include <utility>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/embedding.h"

namespace sluice {
namespace {

class EmbeddingNode final : public Node {
 public:
  EmbeddingNode(Tensor tokens, const EmbeddingOptions& options)
      : tokens_(std::move(tokens)), options_(options) {}

  std::string_view name() const override { return "embedding"; }
  std::vector<SavedTensor> saved() const override { return {{"tokens", tokens_}}; }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    const Tensor grad_out =
        options_.group != nullptr
            ? options_.group->all_gather(grad_outputs[0], options_.divided, "output gradient")
            : grad_outputs[0];
    const DType sums = accumulator_of(grad_out.dtype());
    EmbeddingBackward op{.grad_out = grad_out.view(),
                         .tokens = tokens_.view(),
                         .first_row = options_.first_row,
                         .padding = options_.padding};
    if (pass.wants(0)) op.grad_token_table = zeroed_target(0, sums, pass);
    if (pass.wants(1)) op.grad_position_table = zeroed_target(1, sums, pass);
    if (!op.grad_position_table || !options_.documents.several()) return run(op, grad_out.stream());
    const View positions = std::exchange(op.grad_position_table, View());
    if (op.grad_token_table) run(op, grad_out.stream());
    const std::int64_t sequences = tokens_.dim(0), length = tokens_.dim(1);
    for (const Documents::Piece& piece : options_.documents.pieces(sequences, length))
      run(EmbeddingBackward{.grad_position_table = positions,
                            .grad_out =
                                piece.of(grad_out, grad_out.size() / (sequences * length)).view(),
                            .tokens = piece.of(tokens_).view(),
                            .first_position = piece.position},
          grad_out.stream());
  }

 private:
  /// The kernel adds rows, so a buffer without contents is zeroed first.
  static View zeroed_target(std::size_t input, DType dtype, Backward& pass) {
    const auto target = pass.target(input, dtype);
    if (!target.accumulate) target.tensor.fill_zero();
    return target.tensor.view();
  }

  Tensor tokens_;
  EmbeddingOptions options_;
};

}  // namespace

Tensor embedding(const Tensor& tokens, const Tensor& token_table, const Tensor& position_table,
                 const EmbeddingOptions& options) {
  Tensor out = Tensor::empty(tokens.device(), {tokens.dim(0), tokens.dim(1), token_table.dim(1)},
                             token_table.dtype());
  const bool adds_positions =
      position_table && (options.group == nullptr || options.group->rank() == 0);
  const Documents documents = adds_positions ? options.documents : Documents();
  for (const Documents::Piece& piece : documents.pieces(tokens.dim(0), tokens.dim(1))) {
    if (position_table && piece.position + piece.length > position_table.dim(0))
      fail(fmt::format("a sequence of {} tokens at position {} is longer than the model's context "
                       "of {}",
                       piece.length, piece.position, position_table.dim(0)),
           ErrorKind::usage);
    run(EmbeddingForward{.out = piece.of(out, out.dim(2)).view(),
                         .tokens = piece.of(tokens).view(),
                         .token_table = token_table.view(),
                         .position_table = adds_positions ? position_table.view() : View{},
                         .first_position = piece.position,
                         .first_row = options.first_row},
        tokens.stream());
  }
  if (options.group != nullptr)
    out = options.group->all_reduce(std::exchange(out, {}), options.divided, "embedding")();
  if (recording({token_table, position_table}))
    attach(std::make_shared<EmbeddingNode>(tokens, options), {token_table, position_table}, out);
  return out;
}

}  // namespace sluice
