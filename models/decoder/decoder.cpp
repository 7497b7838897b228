#include "models/decoder/decoder.h"

#include <algorithm>

#include "engine/ops/embedding.h"
#include "engine/ops/linear/linear.h"
#include "models/decoder/generate.h"

namespace sluice {

Decoder::Decoder(const DecoderConfig& config, const TensorShare& share)
    : config_(config),
      names_(names_of(config.family)),
      share_(share),
      shard_(config, share.rank, share.size),
      final_norm_{.name = std::string(names_.final_norm),
                  .width = config.n_embd,
                  .epsilon = config.layer_norm_epsilon,
                  .kind = config.norm,
                  .has_bias = config.has_norm_bias()} {
  validate(config);
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer)
    blocks_.push_back(std::make_unique<DecoderBlock>(config, layer, share));
}

std::vector<Parameter> Decoder::parameters() {
  return parameters({{0, config_.n_layer}});
}

std::vector<Parameter> Decoder::parameters(const std::vector<DecoderPart>& parts) {
  if (config_.lora.rank == 0) return own_parameters(parts);
  std::vector<Parameter> list;
  for (const DecoderPart& part : parts)
    for (std::int64_t layer = part.first; layer < part.last; ++layer)
      for (Parameter& parameter : blocks_[static_cast<std::size_t>(layer)]->adapter_parameters()) {
        parameter.section = section_of(layer);
        list.push_back(std::move(parameter));
      }
  return list;
}

std::vector<Parameter> Decoder::frozen_parameters(const std::vector<DecoderPart>& parts) {
  return config_.lora.rank == 0 ? std::vector<Parameter>() : own_parameters(parts);
}

std::vector<Parameter> Decoder::own_parameters(const std::vector<DecoderPart>& parts) {
  const bool embeds = parts.front().first == 0;
  const bool predicts = parts.back().last == config_.n_layer;
  std::vector<Parameter> list;
  if (embeds || (predicts && config_.tied))
    list.push_back(token_table(names_.table, token_embedding_));
  if (embeds && !config_.rotary)
    list.push_back({std::string(names_.positions),
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
  if (predicts && !config_.tied)
    append({token_table(names_.head, head_table_)}, section_of(config_.n_layer));
  if (predicts && config_.head_bias) append({head_bias()}, section_of(config_.n_layer));
  return list;
}

Parameter Decoder::token_table(std::string_view name, Tensor& tensor) const {
  const Shape table{config_.vocab_size, config_.n_embd};
  const Shard rows = share_.size > 1 ? Shard(table, 0, {shard_.vocabulary}) : Shard();
  return {.name = std::string(name),
          .shape = rows.divided() ? rows.shape() : table,
          .initial = Initial::normal(0.02),
          .tensor = &tensor,
          .embedding = true,
          .shard = rows};
}

Parameter Decoder::head_bias() {
  const Shape vocabulary{config_.vocab_size};
  const Shard kept = share_.size > 1 ? Shard(vocabulary, 0, {shard_.vocabulary}) : Shard();
  return {.name = std::string(names_.head_bias),
          .shape = kept.divided() ? kept.shape() : vocabulary,
          .initial = Initial::constant(0),
          .tensor = &head_bias_,
          .shard = kept};
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

Documents continuing(const Tensor& tokens, KeyValueCaches caches) {
  Documents documents;
  for (const KeyValueCache* const cache : caches) {
    documents.starts.push_back(static_cast<std::int64_t>(documents.starts.size()) * tokens.dim(1));
    documents.positions.push_back(cache->length);
  }
  return documents;
}

ResidualPair Decoder::embed(const Tensor& tokens, const DropoutSource& dropout,
                            const Documents& documents, const Shape& divided) const {
  before_weights(0);
  const EmbeddingOptions options{.group = share_.group,
                                 .first_row = shard_.vocabulary.begin,
                                 .divided = divided,
                                 .documents = documents,
                                 .padding = config_.padding_id.value_or(-1)};
  const Tensor stream = embedding(tokens, token_embedding_, position_embedding_, options);
  return {drop_stream(stream, divided, share_, dropout.mask(0, dropout.embedding)),
          {},
          divided,
          documents};
}

ResidualPair Decoder::blocks(const DecoderPart& part, ResidualPair pair,
                             const DropoutSource& dropout, KeyValueCaches caches) const {
  for (std::int64_t layer = part.first; layer < part.last; ++layer) {
    if (layer > 0) before_weights(layer);
    pair = blocks_[static_cast<std::size_t>(layer)]->forward(std::move(pair), dropout, caches);
  }
  return pair;
}

Tensor Decoder::normalized(const ResidualPair& in) const {
  before_weights(config_.n_layer);
  return final_norm_(in.stream, in.branch, in.tokens.empty() ? nullptr : share_.group).normalized;
}

Tensor Decoder::hidden(const Tensor& tokens, const DropoutSource& dropout,
                       const Documents& documents) const {
  ResidualPair pair = embed(tokens, dropout, documents);
  return normalized(blocks({0, config_.n_layer}, std::move(pair), dropout));
}

Tensor Decoder::continued(const Tensor& tokens, KeyValueCaches caches) const {
  ResidualPair pair = embed(tokens, {}, continuing(tokens, caches));
  pair = blocks({0, config_.n_layer}, std::move(pair), {}, caches);
  for (KeyValueCache* const cache : caches)
    cache->length += tokens.dim(1);
  return normalized(pair);
}

Tensor Decoder::logits(const Tensor& hidden_states) const {
  return logits_of(hidden_states, head_table(), head_bias_);
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
  here.bias = head_bias_;
  if (hidden_states.size() < targets.size() * config_.n_embd) here.divided = targets.shape();
  return linear_cross_entropy(hidden_states, head_table(), targets, here);
}

LinearCrossEntropy Decoder::loss(const Tensor& tokens, const Tensor& targets,
                                 const LinearCrossEntropyOptions& options,
                                 const DropoutSource& dropout, const Documents& documents) const {
  ResidualPair pair = embed(tokens, dropout, documents, divided(tokens.shape()));
  pair = blocks({0, config_.n_layer}, std::move(pair), dropout);
  const Tensor hidden_states = normalized(pair);
  pair = {};
  return predict(hidden_states, targets, options);
}

}  // namespace sluice
