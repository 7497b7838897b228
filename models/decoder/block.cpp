#include "models/decoder/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "engine/ops/checkpoint.h"
#include "engine/ops/dropout.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/mlp.h"
#include "models/decoder/generate.h"
#include "models/decoder/names.h"
#include "models/decoder/shard.h"

namespace sluice {
namespace {

/// Places in a block where dropout acts; site 0 is the embedding.
enum class DropoutSite : std::uint64_t { attention = 1, attention_out = 2, mlp_out = 3 };

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
    : layer_(layer), share_(share), rotary_(rotary_angles(config)), activation_(config.activation) {
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
                     .has_bias = config.norm == NormKind::layernorm};
  };
  norm_1_ = norm_layer(names.norm_1);
  norm_2_ = norm_layer(names.norm_2);
  attention_in_ = linear_layer(names.qkv, config.n_embd, config.qkv_width(), config.qkv_bias);
  attention_out_ =
      linear_layer(names.attention_out, config.query_width(), config.n_embd, config.output_bias);
  mlp_in_ = linear_layer(names.mlp_in, config.n_embd, config.mlp_columns(), config.output_bias);
  mlp_out_ = linear_layer(names.mlp_out, config.inner(), config.n_embd, config.output_bias);
  if (!names.qkv_parts[0].empty()) {
    attention_in_.parts = {{named(names.qkv_parts[0]), config.query_width()},
                           {named(names.qkv_parts[1]), config.key_width()},
                           {named(names.qkv_parts[2]), config.key_width()}};
    for (const std::string_view part : names.mlp_parts)
      mlp_in_.parts.push_back({named(part), config.inner()});
  }
  // Residual projections start smaller, so that the variance of the stream does not grow with depth
  // (Radford et al., 2019, section 2.3).
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(config.n_layer));
  attention_out_.standard_deviation = residual;
  mlp_out_.standard_deviation = residual;
  const DecoderShard shard(config, share.rank, share.size);
  heads_ = shard.attention_heads();
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
  for (NormLayer* norm : {&norm_1_, &norm_2_})
    std::ranges::move(norm->parameters(), std::back_inserter(list));
  return list;
}

std::vector<Tensor> DecoderBlock::leaves() const {
  std::vector<Tensor> list;
  const auto add = [&](const Tensor& weight, const Tensor& bias) {
    list.push_back(weight);
    if (bias) list.push_back(bias);
  };
  for (const LinearLayer* layer : {&attention_in_, &attention_out_, &mlp_in_, &mlp_out_})
    add(layer->weight, layer->bias);
  for (const NormLayer* norm : {&norm_1_, &norm_2_})
    add(norm->weight, norm->bias);
  return list;
}

ResidualPair DecoderBlock::forward(ResidualPair in, const DropoutSource& dropout,
                                   KeyValueCache* cache) const {
  if (!recomputes_block(recompute_) || cache != nullptr)
    return feed_forward(attend(std::move(in), dropout, cache), dropout);
  const Shape tokens = in.tokens;
  const auto whole = [this, dropout, tokens](std::vector<Tensor> inputs) {
    ResidualPair pair{std::move(inputs[0]), {}, tokens};
    pair = feed_forward(attend(std::move(pair), dropout, nullptr), dropout);
    return std::vector{pair.stream, pair.branch};
  };
  // Added up, one tensor is kept for backward instead of two.
  if (in.branch) in.stream = add(in.stream, std::exchange(in.branch, {}));
  const auto out = checkpoint({std::move(in.stream)}, leaves(), whole, host_);
  return {out[0], out[1], tokens};
}

// Both halves release their input as soon as it has been added up, since nothing keeps it for the
// backward pass.

ResidualPair DecoderBlock::attend(ResidualPair in, const DropoutSource& dropout,
                                  KeyValueCache* cache) const {
  const auto [stream, x, recomputable] = norm_1_(in.stream, in.branch, group_of(in));
  const Shape tokens = in.tokens;
  in = {};
  const Tensor qkv =
      attention_in_(x, recompute_ == Recompute::gelu_ln ? recomputable : Recomputable(), tokens);
  Tensor attended;
  if (cache == nullptr) {
    AttentionOptions options = attention_options();
    options.mask = dropout.mask(site(layer_, DropoutSite::attention));
    attended = attention(qkv, options);
  } else {
    auto& [keys, values] = cache->layers[static_cast<std::size_t>(layer_)];
    attended = cached_attention(qkv, keys, values, cache->length, attention_options());
  }
  const Tensor branch = attention_out_(attended, {}, tokens);
  return {
      stream,
      drop_stream(branch, tokens, share_, dropout.mask(site(layer_, DropoutSite::attention_out))),
      tokens};
}

ResidualPair DecoderBlock::feed_forward(ResidualPair in, const DropoutSource& dropout) const {
  const auto [sum, x, recomputable] = norm_2_(in.stream, in.branch, group_of(in));
  const Shape tokens = in.tokens;
  in = {};
  const bool norms = recompute_ == Recompute::gelu_ln;
  const MlpRecompute recompute{.hidden = norms || recompute_ == Recompute::gelu,
                               .x = norms ? recomputable : Recomputable()};
  const MlpWeights weights{.weight_in = mlp_in_.weight,
                           .bias_in = mlp_in_.bias,
                           .weight_out = mlp_out_.weight,
                           .bias_out = mlp_out_.bias,
                           .layout = mlp_in_.layout,
                           .activation = activation_};
  const Tensor branch = mlp(x, weights, recompute, {.group = share_.group, .tokens = tokens});
  return {sum,
          drop_stream(branch, tokens, share_, dropout.mask(site(layer_, DropoutSite::mlp_out))),
          tokens};
}

}  // namespace sluice
