#include "engine/ops/attention.h"

#include <fmt/format.h>

#include "engine/autograd.h"
#include "kernels/base/run.h"

namespace sluice {
namespace {

using Pieces = std::vector<Documents::Piece>;

/// Rotates q and k, which lie side by side, or their gradients back.
void rotate(const Tensor& qkv, const AttentionOptions& options, const Pieces& pieces,
            bool inverse) {
  const AttentionHeads& heads = options.heads;
  for (const Documents::Piece& piece : pieces)
    run(Rotary{.rows = piece.of(qkv, qkv.dim(2)).view(),
               .heads = heads.query + heads.key_value,
               .head_width = static_cast<int>(qkv.dim(2) / heads.in_row()),
               .angles = *options.rotary,
               .first_position = piece.position,
               .inverse = inverse},
        qkv.stream());
}

/// Returns a piece's mask. Each document of a sequence draws other numbers.
DropoutMask mask_of(const Documents::Piece& piece, std::int64_t length, DropoutMask mask) {
  constexpr std::uint64_t odd = 0x9E3779B97F4A7C15;
  mask.first_sample += piece.first / length;
  mask.key += odd * static_cast<std::uint64_t>(piece.first % length);
  return mask;
}

/// Returns a piece's part of the sums of attention: [sequences, heads, length].
View sums_of(const Documents::Piece& piece, const Tensor& log_sum_exp, int heads) {
  return log_sum_exp.slice(piece.first * heads, {piece.sequences, heads, piece.length}).view();
}

class AttentionNode final : public Node {
 public:
  AttentionNode(Tensor qkv, Tensor out, Tensor log_sum_exp, const AttentionOptions& options)
      : qkv_(std::move(qkv)),
        out_(std::move(out)),
        log_sum_exp_(std::move(log_sum_exp)),
        options_(options) {}

  std::string_view name() const override { return "attention"; }
  std::vector<SavedTensor> saved() const override {
    return {{"qkv", qkv_}, {"out", out_}, {"log_sum_exp", log_sum_exp_}};
  }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    Tensor grad = Tensor::empty_like(qkv_);
    const std::int64_t row = qkv_.dim(2), width = out_.dim(2);
    const Pieces pieces = options_.documents.pieces(qkv_.dim(0), qkv_.dim(1));
    for (const Documents::Piece& piece : pieces)
      run(AttentionBackward{.grad_qkv = piece.of(grad, row).view(),
                            .grad_out = piece.of(grad_outputs[0], width).view(),
                            .out = piece.of(out_, width).view(),
                            .log_sum_exp = sums_of(piece, log_sum_exp_, options_.heads.query),
                            .qkv = piece.of(qkv_, row).view(),
                            .heads = options_.heads,
                            .mask = mask_of(piece, qkv_.dim(1), options_.mask),
                            .first_head = options_.first_head},
          grad.stream());
    if (options_.rotary != nullptr) rotate(grad, options_, pieces, true);
    pass.give(0, grad);
  }

 private:
  Tensor qkv_, out_, log_sum_exp_;
  AttentionOptions options_;
};

/// Checks the shapes and returns that of the result.
Shape result_shape(const Tensor& qkv, const AttentionOptions& options) {
  const AttentionHeads& heads = options.heads;
  if (heads.query < 1 || heads.key_value < 1 || heads.query % heads.key_value != 0)
    fail(fmt::format("attention: {} query heads do not divide into groups for {} key/value heads",
                     heads.query, heads.key_value));
  if (qkv.rank() != 3 || qkv.dim(2) % heads.in_row() != 0)
    fail(
        fmt::format("attention: an input of shape {} does not divide into q of {} heads, and k "
                    "and v of {}",
                    to_string(qkv.shape()), heads.query, heads.key_value));
  const std::int64_t width = qkv.dim(2) / heads.in_row();
  if (options.rotary != nullptr &&
      (options.rotary->width > width || options.rotary->width % 2 != 0))
    fail(fmt::format("attention: rotary positions of {} columns do not fit heads {} wide",
                     options.rotary->width, width));
  return {qkv.dim(0), qkv.dim(1), heads.query * width};
}

}  // namespace

Tensor attention(const Tensor& qkv, const AttentionOptions& options) {
  Tensor out = Tensor::empty(qkv.device(), result_shape(qkv, options), qkv.dtype());
  Tensor log_sum_exp = Tensor::empty(qkv.device(), {qkv.dim(0), options.heads.query, qkv.dim(1)},
                                     accumulator_of(qkv.dtype()));
  const Pieces pieces = options.documents.pieces(qkv.dim(0), qkv.dim(1));
  if (options.rotary != nullptr) {
    check(!qkv.requires_grad() || qkv.impl()->producer != nullptr,
          "rotary positions would change a leaf");
    rotate(qkv, options, pieces, false);
  }
  for (const Documents::Piece& piece : pieces)
    run(AttentionForward{.out = piece.of(out, out.dim(2)).view(),
                         .log_sum_exp = sums_of(piece, log_sum_exp, options.heads.query),
                         .qkv = piece.of(qkv, qkv.dim(2)).view(),
                         .heads = options.heads,
                         .mask = mask_of(piece, qkv.dim(1), options.mask),
                         .first_head = options.first_head,
                         .wgmma = qkv.device()->wgmma_attention()},
        qkv.stream());
  if (recording({qkv}))
    attach(std::make_shared<AttentionNode>(qkv, out.detach(), log_sum_exp, options), {qkv}, out);
  return out;
}

Tensor cached_attention(const Tensor& qkv, std::span<const AttentionCache> caches,
                        const AttentionOptions& options) {
  const std::int64_t length = qkv.dim(1);
  check(qkv.dim(0) == static_cast<std::int64_t>(caches.size()), "each sequence needs its cache");
  Tensor out = Tensor::empty(qkv.device(), result_shape(qkv, options), qkv.dtype());
  Pieces pieces;
  for (const AttentionCache& cache : caches) {
    const std::int64_t end = cache.start + length;
    if (end > cache.keys.dim(1))
      fail(fmt::format("attention: position {} does not fit a cache for {} positions", end,
                       cache.keys.dim(1)));
    pieces.push_back({static_cast<std::int64_t>(pieces.size()) * length, 1, length, cache.start});
  }
  if (options.rotary != nullptr) rotate(qkv, options, pieces, false);
  for (std::size_t row = 0; row < caches.size(); ++row)
    run(CachedAttention{.out = pieces[row].of(out, out.dim(2)).view(),
                        .key_cache = caches[row].keys.view(),
                        .value_cache = caches[row].values.view(),
                        .qkv = pieces[row].of(qkv, qkv.dim(2)).view(),
                        .start = caches[row].start,
                        .heads = options.heads},
        qkv.stream());
  return out;
}

}  // namespace sluice
