#include "models/decoder/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "engine/ops/attention.h"
#include "engine/ops/checkpoint.h"
#include "engine/ops/dropout.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/embedding.h"
#include "engine/ops/mlp.h"
#include "models/decoder/generate.h"

namespace sluice {
namespace {

/// Places in a block where dropout acts; site 0 is the embedding.
enum class DropoutSite : std::uint64_t { attention = 1, attention_out = 2, mlp_out = 3 };

std::uint64_t site(std::int64_t layer, DropoutSite place) {
  return static_cast<std::uint64_t>(layer) * 4 + static_cast<std::uint64_t>(place);
}

/// Applies dropout to a residual stream, or to this rank's stretch of one.
Tensor drop_stream(const Tensor& x, const Shape& tokens, const TensorShare& share,
                   const DropoutMask& mask) {
  if (tokens.empty()) return dropout(x, mask);
  return dropout(x, mask, {.first = share.rank * x.size(), .per_sample = tokens[1] * x.dim(-1)});
}

}  // namespace

DecoderBlock::DecoderBlock(const DecoderConfig& config, std::int64_t layer,
                           const TensorShare& share)
    : layer_(layer),
      share_(share),
      ln_1_{fmt::format("h.{}.ln_1", layer), config.n_embd, config.layer_norm_epsilon},
      ln_2_{fmt::format("h.{}.ln_2", layer), config.n_embd, config.layer_norm_epsilon},
      attention_in_{fmt::format("h.{}.attn.c_attn", layer), config.n_embd, 3 * config.n_embd},
      attention_out_{fmt::format("h.{}.attn.c_proj", layer), config.n_embd, config.n_embd},
      mlp_in_{fmt::format("h.{}.mlp.c_fc", layer), config.n_embd, config.inner()},
      mlp_out_{fmt::format("h.{}.mlp.c_proj", layer), config.inner(), config.n_embd} {
  // Residual projections start smaller, so that the variance of the stream does not grow with depth
  // (Radford et al., 2019, section 2.3).
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(config.n_layer));
  attention_out_.standard_deviation = residual;
  mlp_out_.standard_deviation = residual;
  const DecoderShard shard(config, share.rank, share.size);
  heads_ = static_cast<int>(shard.heads.end - shard.heads.begin);
  first_head_ = static_cast<int>(shard.heads.begin);
  if (share.size == 1) return;
  attention_in_.keep_columns(shard.qkv, share.group);
  attention_out_.keep_rows(shard.width, share.group);
  mlp_in_.keep_columns({shard.inner}, share.group);
  mlp_out_.keep_rows(shard.inner, share.group);
}

std::vector<Parameter> DecoderBlock::parameters() {
  // Matrices come first, so that weight decay covers one stretch of each block.
  std::vector<Parameter> list;
  for (LinearLayer* layer : {&attention_in_, &attention_out_, &mlp_in_, &mlp_out_})
    list.push_back(layer->weight_parameter());
  for (LinearLayer* layer : {&attention_in_, &attention_out_, &mlp_in_, &mlp_out_})
    list.push_back(layer->bias_parameter());
  for (LayerNormLayer* norm : {&ln_1_, &ln_2_})
    std::ranges::move(norm->parameters(), std::back_inserter(list));
  return list;
}

std::vector<Tensor> DecoderBlock::leaves() const {
  std::vector<Tensor> list;
  for (const LinearLayer* layer : {&attention_in_, &attention_out_, &mlp_in_, &mlp_out_})
    list.insert(list.end(), {layer->weight, layer->bias});
  for (const LayerNormLayer* norm : {&ln_1_, &ln_2_})
    list.insert(list.end(), {norm->weight, norm->bias});
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
  const auto [stream, x, recomputable] = ln_1_(in.stream, in.branch, group_of(in));
  const Shape tokens = in.tokens;
  in = {};
  const Tensor qkv =
      attention_in_(x, recompute_ == Recompute::gelu_ln ? recomputable : Recomputable(), tokens);
  Tensor attended;
  if (cache == nullptr) {
    attended = attention(qkv, {.heads = heads_,
                               .mask = dropout.mask(site(layer_, DropoutSite::attention)),
                               .first_head = first_head_});
  } else {
    auto& [keys, values] = cache->layers[static_cast<std::size_t>(layer_)];
    attended = cached_attention(qkv, keys, values, cache->length, {.heads = heads_});
  }
  const Tensor branch = attention_out_(attended, {}, tokens);
  return {
      stream,
      drop_stream(branch, tokens, share_, dropout.mask(site(layer_, DropoutSite::attention_out))),
      tokens};
}

ResidualPair DecoderBlock::feed_forward(ResidualPair in, const DropoutSource& dropout) const {
  const auto [sum, x, recomputable] = ln_2_(in.stream, in.branch, group_of(in));
  const Shape tokens = in.tokens;
  in = {};
  const bool norms = recompute_ == Recompute::gelu_ln;
  const MlpRecompute recompute{.hidden = norms || recompute_ == Recompute::gelu,
                               .x = norms ? recomputable : Recomputable()};
  const MlpWeights weights{.weight_in = mlp_in_.weight,
                           .bias_in = mlp_in_.bias,
                           .weight_out = mlp_out_.weight,
                           .bias_out = mlp_out_.bias};
  const Tensor branch = mlp(x, weights, recompute, {.group = share_.group, .tokens = tokens});
  return {sum,
          drop_stream(branch, tokens, share_, dropout.mask(site(layer_, DropoutSite::mlp_out))),
          tokens};
}

Decoder::Decoder(const DecoderConfig& config, const TensorShare& share)
    : config_(config),
      share_(share),
      shard_(config, share.rank, share.size),
      final_norm_{"ln_f", config.n_embd, config.layer_norm_epsilon} {
  validate(config);
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer)
    blocks_.push_back(std::make_unique<DecoderBlock>(config, layer, share));
}

std::vector<Parameter> Decoder::parameters() {
  return parameters({{0, config_.n_layer}});
}

std::vector<Parameter> Decoder::parameters(const std::vector<DecoderPart>& parts) {
  const bool embeds = parts.front().first == 0;
  const bool predicts = parts.back().last == config_.n_layer;
  std::vector<Parameter> list;
  if (embeds || predicts) {
    const Shape table{config_.vocab_size, config_.n_embd};
    const Shard rows = share_.size > 1 ? Shard(table, 0, {shard_.vocabulary}) : Shard();
    list.push_back({.name = "wte.weight",
                    .shape = rows.divided() ? rows.shape() : table,
                    .initial = Initial::normal(0.02),
                    .tensor = &token_embedding_,
                    .embedding = true,
                    .shard = rows});
  }
  if (embeds)
    list.push_back({"wpe.weight",
                    {config_.n_positions, config_.n_embd},
                    Initial::normal(0.02),
                    &position_embedding_,
                    true});
  const auto append = [&](std::vector<Parameter> more, int section) {
    for (Parameter& parameter : more) {
      parameter.section = section;
      list.push_back(std::move(parameter));
    }
  };
  for (const DecoderPart& part : parts)
    for (std::int64_t layer = part.first; layer < part.last; ++layer)
      append(blocks_[static_cast<std::size_t>(layer)]->parameters(), section_of(layer));
  if (predicts) append(final_norm_.parameters(), section_of(config_.n_layer));
  return list;
}

void Decoder::set_recompute(const std::vector<Recompute>& per_layer, HostStack* host) {
  check(per_layer.size() == blocks_.size(), "recompute needs one mode for each layer");
  check(
      host != nullptr || std::ranges::find(per_layer, Recompute::block_on_host) == per_layer.end(),
      "there is no host memory for what blocks keep");
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer)
    blocks_[layer]->set_recompute(per_layer[layer], host);
}

Shape Decoder::divided(const Shape& tokens) const {
  const bool divides = share_.divides_tokens && tokens[0] * tokens[1] % share_.size == 0;
  return divides ? tokens : Shape();
}

ResidualPair Decoder::embed(const Tensor& tokens, const DropoutSource& dropout,
                            std::int64_t first_position, const Shape& divided) const {
  before_weights(0);
  const EmbeddingOptions options{.first_position = first_position,
                                 .group = share_.group,
                                 .first_row = shard_.vocabulary.begin,
                                 .divided = divided};
  const Tensor stream = embedding(tokens, token_embedding_, position_embedding_, options);
  return {drop_stream(stream, divided, share_, dropout.mask(0)), {}, divided};
}

ResidualPair Decoder::blocks(const DecoderPart& part, ResidualPair pair,
                             const DropoutSource& dropout, KeyValueCache* cache) const {
  for (std::int64_t layer = part.first; layer < part.last; ++layer) {
    if (layer > 0) before_weights(layer);
    pair = blocks_[static_cast<std::size_t>(layer)]->forward(std::move(pair), dropout, cache);
  }
  return pair;
}

Tensor Decoder::normalized(const ResidualPair& in) const {
  before_weights(config_.n_layer);
  return final_norm_(in.stream, in.branch, in.tokens.empty() ? nullptr : share_.group).normalized;
}

Tensor Decoder::hidden(const Tensor& tokens, const DropoutSource& dropout,
                       KeyValueCache* cache) const {
  ResidualPair pair = embed(tokens, dropout, cache != nullptr ? cache->length : 0);
  pair = blocks({0, config_.n_layer}, std::move(pair), dropout, cache);
  if (cache != nullptr) cache->length += tokens.dim(1);
  return normalized(pair);
}

Tensor Decoder::logits(const Tensor& hidden_states) const {
  return logits_of(hidden_states, head_table(), accumulator_of(hidden_states.dtype()));
}

Tensor Decoder::logits_of_token(const Tensor& hidden_state) const {
  const Tensor mine = logits(hidden_state);
  if (share_.group == nullptr) return mine;
  return share_.group->gather(mine, vocabulary_counts(config_, share_.size), "logits")
      .slice(0, {1, config_.vocab_size});
}

LinearCrossEntropy Decoder::predict(const Tensor& hidden_states, const Tensor& targets,
                                    const LinearCrossEntropyOptions& options) const {
  LinearCrossEntropyOptions here = options;
  here.group = share_.group;
  here.first_row = shard_.vocabulary.begin;
  if (hidden_states.size() < targets.size() * config_.n_embd) here.divided = targets.shape();
  return linear_cross_entropy(hidden_states, head_table(), targets, here);
}

LinearCrossEntropy Decoder::loss(const Tensor& tokens, const Tensor& targets,
                                 const LinearCrossEntropyOptions& options,
                                 const DropoutSource& dropout) const {
  ResidualPair pair = embed(tokens, dropout, 0, divided(tokens.shape()));
  pair = blocks({0, config_.n_layer}, std::move(pair), dropout, nullptr);
  const Tensor hidden_states = normalized(pair);
  pair = {};
  return predict(hidden_states, targets, options);
}

}  // namespace sluice
