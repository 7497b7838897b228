#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/ops/linear/linear_cross_entropy.h"
#include "models/decoder/block.h"
#include "models/decoder/config.h"
#include "models/decoder/names.h"
#include "models/decoder/shard.h"
#include "models/layers.h"

namespace sluice {

/// Blocks [first, last) of a decoder. The part with the first block also embeds tokens, and the
/// part with the last block also predicts.
struct DecoderPart {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Returns tokens [B, T] as documents that continue the sequences of the caches.
Documents continuing(const Tensor& tokens, KeyValueCaches caches);

/// A decoder as its configuration says: GPT-2, Llama and others. It allocates no memory: a
/// ParameterSpace gives its parameters their tensors. Only parts that have their tensors can
/// compute.
class Decoder final : public Module {
 public:
  /// `share`: this rank's share if several ranks divide the model's matrices.
  explicit Decoder(const DecoderConfig& config, const TensorShare& share = {});

  /// The name of the trained table of token embeddings if the vocabulary head uses it too, else "".
  std::string tied_table() const { return std::string(trains_tied() ? names_.table : ""); }
  bool trains_tied() const { return config_.tied && config_.lora.rank == 0; }
  /// Returns the Parameter::section of a block. Embeddings have 0, the final norm comes last.
  static constexpr int section_of(std::int64_t layer) { return static_cast<int>(layer) + 1; }

  const DecoderConfig& config() const { return config_; }
  const DecoderNames& names() const { return names_; }
  const TensorShare& share() const { return share_; }
  const DecoderShard& shard() const { return shard_; }
  /// The dtype of the weights, in which the model computes.
  DType dtype() const { return token_embedding_.dtype(); }
  /// The parameters that are trained: those of the adapters if the configuration has some, else
  /// all.
  std::vector<Parameter> parameters() override;
  /// The trained parameters of some parts, ascending. A tied table is listed once.
  std::vector<Parameter> parameters(const std::vector<DecoderPart>& parts);
  /// The parameters that are not trained: none without adapters.
  std::vector<Parameter> frozen_parameters(const std::vector<DecoderPart>& parts);
  /// Sets a function that forward passes call before they read weights: with 0 before the
  /// embeddings and the first block, with the layer before each other block, with n_layer before
  /// the final norm.
  void set_before_weights(std::function<void(std::int64_t layer)> hook) {
    before_weights_ = std::move(hook);
  }
  /// Sets the activations that each layer recomputes in backward (at first none). Results do not
  /// change. block_on_host needs `host`; forward and backward passes must then alternate.
  void set_recompute(const std::vector<Recompute>& per_layer, HostStack* host = nullptr);

  /// Gives the head its own table tensor, which may share the embedding's elements. Its gradient is
  /// separate.
  void set_head_table(const Tensor& table) { head_table_ = table; }

  /// Returns `tokens` ([B, T]) if the ranks divide the residual stream's tokens, that is, if
  /// sequence parallelism is on and B * T is a multiple of the ranks; else an empty shape.
  Shape divided(const Shape& tokens) const;

  // The pieces of a forward pass.
  /// `divided`: the result of divided().
  ResidualPair embed(const Tensor& tokens, const DropoutSource& dropout,
                     const Documents& documents = {}, const Shape& divided = {}) const;
  ResidualPair blocks(const DecoderPart& part, ResidualPair in, const DropoutSource& dropout,
                      KeyValueCaches caches = {}) const;
  Tensor normalized(const ResidualPair& in) const;
  /// Computes the loss from the hidden states, of all tokens or (sequence parallelism) of this
  /// rank's. Read about recording at linear_cross_entropy().
  LinearCrossEntropy predict(const Tensor& hidden_states, const Tensor& targets,
                             const LinearCrossEntropyOptions& options) const;

  /// Returns the final hidden states [B, T, n_embd] of tokens [B, T].
  Tensor hidden(const Tensor& tokens, const DropoutSource& dropout = {},
                const Documents& documents = {}) const;
  /// Returns those of tokens that continue sequences, each with its cache.
  Tensor continued(const Tensor& tokens, KeyValueCaches caches) const;
  /// Returns the logits [B, T, vocabulary] in f32 (f64). With tensor parallelism each rank returns
  /// those of its part of the vocabulary.
  Tensor logits(const Tensor& hidden_states) const;
  /// Returns the logits [1, vocab_size] of one hidden state [1, n_embd], gathered from all ranks.
  Tensor logits_of_token(const Tensor& hidden_state) const;
  /// Computes the loss of predicting targets [B, T] from tokens [B, T].
  LinearCrossEntropy loss(const Tensor& tokens, const Tensor& targets,
                          const LinearCrossEntropyOptions& options,
                          const DropoutSource& dropout = {}, const Documents& documents = {}) const;

 private:
  std::vector<Parameter> own_parameters(const std::vector<DecoderPart>& parts);

  DecoderConfig config_;
  const DecoderNames& names_;
  TensorShare share_;
  DecoderShard shard_;
  const Tensor& head_table() const { return head_table_ ? head_table_ : token_embedding_; }
  /// A table with a row for each token, of which this rank has those of its part.
  Parameter token_table(std::string_view name, Tensor& tensor) const;
  Parameter head_bias();
  void before_weights(std::int64_t layer) const {
    if (before_weights_) before_weights_(layer);
  }

  Tensor token_embedding_, position_embedding_;  ///< the latter may be none
  Tensor head_table_;  ///< of its own, or a pipeline's copy; none: the head uses the embedding's
  Tensor head_bias_;   ///< may be none
  std::vector<std::unique_ptr<DecoderBlock>> blocks_;
  NormLayer final_norm_;
  std::function<void(std::int64_t)> before_weights_;
};

}  // namespace sluice
