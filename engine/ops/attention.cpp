#include "engine/ops/attention.h"

#include <fmt/format.h>

#include "engine/autograd.h"
#include "kernels/attention.h"
#include "kernels/base/run.h"

namespace sluice {
namespace {

class AttentionNode final : public Node {
 public:
  AttentionNode(Tensor qkv, Tensor out, Tensor log_sum_exp, int heads, const DropoutMask& mask,
                int first_head)
      : qkv_(std::move(qkv)),
        out_(std::move(out)),
        log_sum_exp_(std::move(log_sum_exp)),
        heads_(heads),
        mask_(mask),
        first_head_(first_head) {}

  std::string_view name() const override { return "attention"; }
  std::vector<SavedTensor> saved() const override {
    return {{"qkv", qkv_}, {"out", out_}, {"log_sum_exp", log_sum_exp_}};
  }

  void backward(std::span<const Tensor> grad_outputs, Backward& pass) override {
    Tensor grad = Tensor::empty(qkv_.device(), qkv_.shape(), qkv_.dtype());
    run(AttentionBackward{.grad_qkv = grad.view(),
                          .grad_out = grad_outputs[0].view(),
                          .out = out_.view(),
                          .log_sum_exp = log_sum_exp_.view(),
                          .qkv = qkv_.view(),
                          .heads = heads_,
                          .mask = mask_,
                          .first_head = first_head_},
        grad.stream());
    pass.give(0, grad);
  }

 private:
  Tensor qkv_, out_, log_sum_exp_;
  int heads_;
  DropoutMask mask_;
  int first_head_;
};

void require_shape(const Tensor& qkv, int heads) {
  if (qkv.rank() != 3 || heads < 1 || qkv.dim(2) % (3 * heads) != 0)
    fail(fmt::format("attention: an input of shape {} does not divide into q, k, v of {} heads",
                     to_string(qkv.shape()), heads));
}

}  // namespace

Tensor attention(const Tensor& qkv, int heads, const DropoutMask& mask, int first_head) {
  require_shape(qkv, heads);
  const std::int64_t batch = qkv.dim(0);
  const std::int64_t positions = qkv.dim(1);
  Tensor out = Tensor::empty(qkv.device(), {batch, positions, qkv.dim(2) / 3}, qkv.dtype());
  Tensor log_sum_exp =
      Tensor::empty(qkv.device(), {batch, heads, positions}, accumulator_of(qkv.dtype()));
  run(AttentionForward{.out = out.view(),
                       .log_sum_exp = log_sum_exp.view(),
                       .qkv = qkv.view(),
                       .heads = heads,
                       .mask = mask,
                       .first_head = first_head,
                       .wgmma = qkv.device()->wgmma_attention()},
      qkv.stream());
  if (recording({qkv}))
    attach(std::make_shared<AttentionNode>(qkv, out.detach(), log_sum_exp, heads, mask, first_head),
           {qkv}, out);
  return out;
}

Tensor cached_attention(const Tensor& qkv, const Tensor& key_cache, const Tensor& value_cache,
                        std::int64_t start, int heads) {
  require_shape(qkv, heads);
  if (start + qkv.dim(1) > key_cache.dim(1))
    fail(fmt::format("attention: position {} does not fit a cache for {} positions",
                     start + qkv.dim(1), key_cache.dim(1)));
  Tensor out = Tensor::empty(qkv.device(), {qkv.dim(0), qkv.dim(1), qkv.dim(2) / 3}, qkv.dtype());
  run(CachedAttention{.out = out.view(),
                      .key_cache = key_cache.view(),
                      .value_cache = value_cache.view(),
                      .qkv = qkv.view(),
                      .start = start,
                      .heads = heads},
      qkv.stream());
  return out;
}

}  // namespace sluice
