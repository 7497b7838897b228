#include "models/decoder/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "engine/ops/checkpoint.h"
#include "engine/ops/dropout.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/gather_key_value.h"
#include "engine/ops/head_order.h"
#include "engine/ops/linear/activation.h"
#include "engine/ops/linear/mlp.h"
#include "engine/ops/query_key_norm.h"
#include "models/decoder/generate.h"
#include "models/decoder/names.h"
#include "models/decoder/shard.h"

namespace sluice {
namespace {

/// Places in a block where dropout acts; site 0 is the embedding.
enum class DropoutSite : std::uint64_t {
  attention = 1,
  attention_out = 2,
  mlp_out = 3,
  attention_in_adapter = std::uint64_t{1} << 32,  ///< no other site is as high
  attention_out_adapter,
  mlp_in_adapter,
  mlp_out_adapter
};

std::uint64_t site(std::int64_t layer, DropoutSite place) {
  return static_cast<std::uint64_t>(layer) * 4 + static_cast<std::uint64_t>(place);
}

}  // namespace

Tensor drop_stream(const Tensor& x, const Shape& tokens, const TensorShare& share,
                   const DropoutMask& mask) {
  if (tokens.empty()) return dropout(x, mask);
  return dropout(x, mask, {.first = share.rank * x.size(), .per_sample = tokens[1] * x.dim(-1)});
}

DecoderBlock::DecoderBlock(const DecoderConfig& config, std::int64_t layer,
                           const TensorShare& share)
    : layer_(layer),
      share_(share),
      kind_(config.block),
      fused_heads_(config.fused_heads),
      head_width_(config.width_of_head()),
      rotary_(rotary_angles(config)),
      activation_(config.activation) {
  const DecoderNames& names = names_of(config.family);
  const auto named = [&](std::string_view name) {
    return fmt::format("{}{}.{}", names.blocks, layer, name);
  };
  const auto linear_layer = [&](std::string_view name, std::int64_t in, std::int64_t out,
                                bool bias) {
    return LinearLayer{
        .name = named(name), .in = in, .out = out, .layout = config.layout, .has_bias = bias};
  };
  const auto norm_layer = [&](std::string_view name) {
    return NormLayer{.name = named(name),
                     .width = config.n_embd,
                     .epsilon = config.layer_norm_epsilon,
                     .kind = config.norm,
                     .has_bias = config.has_norm_bias()};
  };
  norm_1_ = norm_layer(names.norm_1);
  if (kind_ != BlockKind::parallel_one_norm) norm_2_ = norm_layer(names.norm_2);
  if (config.query_key_norm)
    for (auto& [norm, name] :
         {std::pair{&query_norm_, names.query_norm}, {&key_norm_, names.key_norm}})
      *norm = {.name = named(name),
               .width = config.width_of_head(),
               .epsilon = config.layer_norm_epsilon,
               .kind = NormKind::rmsnorm,
               .has_bias = false};
  attention_in_ = linear_layer(names.qkv, config.n_embd, config.qkv_width(), config.qkv_bias);
  attention_out_ =
      linear_layer(names.attention_out, config.query_width(), config.n_embd, config.output_bias);
  mlp_in_ = linear_layer(names.mlp_in, config.n_embd, config.mlp_columns(), config.mlp_bias);
  mlp_out_ = linear_layer(names.mlp_out, config.inner(), config.n_embd, config.mlp_bias);
  if (!names.qkv_parts[0].empty())
    attention_in_.parts = {{named(names.qkv_parts[0]), config.query_width()},
                           {named(names.qkv_parts[1]), config.key_width()},
                           {named(names.qkv_parts[2]), config.key_width()}};
  if (!names.mlp_parts[0].empty())
    for (const std::string_view part : names.mlp_parts)
      mlp_in_.parts.push_back({named(part), config.inner()});
  // Residual projections start smaller, so that the variance of the stream does not grow with depth
  // (Radford et al., 2019, section 2.3).
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(config.n_layer));
  attention_out_.standard_deviation = residual;
  mlp_out_.standard_deviation = residual;
  for (const auto& [linear, place] : {std::pair{&attention_in_, DropoutSite::attention_in_adapter},
                                      {&attention_out_, DropoutSite::attention_out_adapter},
                                      {&mlp_in_, DropoutSite::mlp_in_adapter},
                                      {&mlp_out_, DropoutSite::mlp_out_adapter}})
    linear->adapt(config.lora, names.adapter_prefix(), site(layer, place));
  const DecoderShard shard(config, share.rank, share.size);
  heads_ = shard.attention_heads();
  sharers_ = shard.sharers;
  first_head_ = static_cast<int>(shard.heads.begin);
  if (share.size == 1) return;
  attention_in_.keep_columns(shard.qkv, share.group);
  attention_out_.keep_rows(shard.width, share.group);
  mlp_in_.keep_columns(shard.mlp_in, share.group);
  mlp_out_.keep_rows(shard.inner, share.group);
}

std::vector<Parameter> DecoderBlock::parameters() {
  // Matrices come first, so that weight decay covers one stretch of each block.
  std::vector<Parameter> list;
  for (LinearLayer* layer : {&attention_in_, &attention_out_, &mlp_in_, &mlp_out_})
    list.push_back(layer->weight_parameter());
  for (LinearLayer* layer : {&attention_in_, &attention_out_, &mlp_in_, &mlp_out_})
    if (layer->has_bias) list.push_back(layer->bias_parameter());
  for (NormLayer* norm : {&norm_1_, &norm_2_, &query_norm_, &key_norm_})
    if (norm->width != 0) std::ranges::move(norm->parameters(), std::back_inserter(list));
  return list;
}

std::vector<Parameter> DecoderBlock::adapter_parameters() {
  std::vector<Parameter> list;
  for (LinearLayer* layer : {&attention_in_, &attention_out_, &mlp_in_, &mlp_out_})
    if (layer->adapter) std::ranges::move(layer->adapter.parameters(), std::back_inserter(list));
  return list;
}

std::vector<Tensor> DecoderBlock::leaves() const {
  std::vector<Tensor> list;
  const auto add = [&](const Tensor& tensor) {
    if (tensor) list.push_back(tensor);
  };
  for (const LinearLayer* layer : {&attention_in_, &attention_out_, &mlp_in_, &mlp_out_}) {
    add(layer->weight);
    add(layer->bias);
    if (layer->adapter)
      for (const Tensor& tensor : layer->adapter.tensors())
        add(tensor);
  }
  for (const NormLayer* norm : {&norm_1_, &norm_2_, &query_norm_, &key_norm_}) {
    add(norm->weight);
    add(norm->bias);
  }
  return list;
}

ResidualPair DecoderBlock::forward(ResidualPair in, const DropoutSource& dropout,
                                   KeyValueCaches caches) const {
  if (!recomputes_block(recompute_) || !caches.empty())
    return compute(std::move(in), dropout, caches);
  const Shape tokens = in.tokens;
  const Documents documents = in.documents;
  const auto whole = [this, dropout, tokens, documents](std::vector<Tensor> inputs) {
    const ResidualPair pair = compute({std::move(inputs[0]), {}, tokens, documents}, dropout, {});
    return std::vector{pair.stream, pair.branch};
  };
  // Added up, one tensor is kept for backward instead of two.
  if (in.branch) in.stream = add(in.stream, std::exchange(in.branch, {}));
  const auto out = checkpoint({std::move(in.stream)}, leaves(), whole, host_);
  return {out[0], out[1], tokens, documents};
}

namespace {

/// A norm of the residual stream, and the branch that is computed from it. The input is released as
/// soon as it has been added up, since nothing keeps it for the backward pass.
template <class Branch>
ResidualPair after_norm(const NormLayer& norm, ResidualPair in, TensorGroup* group,
                        const Branch& branch) {
  const ResidualNorm x = norm(in.stream, in.branch, group);
  const Shape tokens = in.tokens;
  Documents documents = std::move(in.documents);
  in = {};
  return {x.sum, branch(x, tokens), tokens, std::move(documents)};
}

}  // namespace

ResidualPair DecoderBlock::compute(ResidualPair in, const DropoutSource& dropout,
                                   KeyValueCaches caches) const {
  TensorGroup* const group = in.tokens.empty() ? nullptr : share_.group;
  const auto attended = [&, documents = in.documents](const ResidualNorm& x, const Shape& tokens) {
    return attend(x, tokens, documents, dropout, caches);
  };
  const auto fed = [&](const ResidualNorm& x, const Shape& tokens) {
    return feed_forward(x, tokens, dropout);
  };
  if (kind_ != BlockKind::sequential)
    return after_norm(norm_1_, std::move(in), group,
                      [&](const ResidualNorm& x, const Shape& tokens) {
                        const Tensor first = attended(x, tokens);
                        if (kind_ == BlockKind::parallel_one_norm)
                          return add(first, fed(x, tokens));
                        return add(first, fed(norm_2_(x.sum, {}, group), tokens));
                      });
  in = after_norm(norm_1_, std::move(in), group, attended);
  return after_norm(norm_2_, std::move(in), group, fed);
}

Tensor DecoderBlock::attend(const ResidualNorm& x, const Shape& tokens, const Documents& documents,
                            const DropoutSource& dropout, KeyValueCaches caches) const {
  Tensor qkv = attention_in_(x.normalized,
                             recompute_ == Recompute::gelu_ln ? x.recomputable : Recomputable(),
                             tokens, dropout);
  if (fused_heads_) qkv = in_head_order(qkv, heads_.query);
  if (sharers_ > 1) qkv = gather_key_value(qkv, head_width_, sharers_, *share_.group);
  if (query_norm_.weight)
    qkv = query_key_norm(qkv, query_norm_.weight, key_norm_.weight, heads_, query_norm_.epsilon,
                         share_.group);
  Tensor attended;
  if (caches.empty()) {
    AttentionOptions options = attention_options();
    options.mask = dropout.mask(site(layer_, DropoutSite::attention), dropout.attention);
    options.documents = documents;
    attended = attention(qkv, options);
  } else {
    std::vector<AttentionCache> here;
    for (const KeyValueCache* const cache : caches) {
      const auto& [keys, values] = cache->layers[static_cast<std::size_t>(layer_)];
      here.push_back({keys, values, cache->length});
    }
    attended = cached_attention(qkv, here, attention_options());
  }
  return drop_stream(attention_out_(attended, {}, tokens, dropout), tokens, share_,
                     dropout.mask(site(layer_, DropoutSite::attention_out)));
}

Tensor DecoderBlock::feed_forward(const ResidualNorm& x, const Shape& tokens,
                                  const DropoutSource& dropout) const {
  const bool norms = recompute_ == Recompute::gelu_ln;
  const MlpRecompute recompute{.hidden = norms || recompute_ == Recompute::gelu,
                               .x = norms ? x.recomputable : Recomputable()};
  const DropoutMask mask = dropout.mask(site(layer_, DropoutSite::mlp_out));
  // Adapters come between the products and the activation, which are one op without them. That op
  // keeps its weights for backward, so it cannot take dequantized ones.
  if (mlp_in_.adapter || mlp_out_.adapter || mlp_in_.keeps_int8) {
    const Activated hidden =
        activation(mlp_in_(x.normalized, recompute.x, tokens, dropout), activation_);
    const Tensor out = mlp_out_(hidden.out, recompute.hidden ? hidden.recomputable : Recomputable(),
                                tokens, dropout);
    return drop_stream(out, tokens, share_, mask);
  }
  const MlpWeights weights{.weight_in = mlp_in_.weight,
                           .bias_in = mlp_in_.bias,
                           .weight_out = mlp_out_.weight,
                           .bias_out = mlp_out_.bias,
                           .layout = mlp_in_.layout,
                           .activation = activation_};
  return drop_stream(
      mlp(x.normalized, weights, recompute, {.group = share_.group, .tokens = tokens}), tokens,
      share_, mask);
}

}  // namespace sluice
