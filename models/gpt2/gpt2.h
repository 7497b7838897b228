#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/host_stack.h"
#include "engine/ops/linear_cross_entropy.h"
#include "engine/rng.h"
#include "models/gpt2/config.h"
#include "models/gpt2/kv_cache.h"
#include "models/gpt2/recompute.h"
#include "models/gpt2/shard.h"
#include "models/layers.h"
#include "models/module.h"

namespace sluice {

/// What flows between blocks: the residual stream and the last branch, not yet added. The next
/// LayerNorm adds them, in one pass over memory.
struct ResidualPair {
  Tensor stream;
  Tensor branch;   ///< none before the first block
  Shape tokens{};  ///< see TensorGroup
};

/// One pre-LayerNorm transformer block (Radford et al., 2019).
class GPT2Block final : public Module {
 public:
  GPT2Block(const GPT2Config& config, std::int64_t layer, const TensorShare& share);

  std::vector<Parameter> parameters() override;
  /// `dropout` may be inactive; `cache`, if given, makes this a step of generation.
  ResidualPair forward(ResidualPair in, const DropoutSource& dropout, KeyValueCache* cache) const;
  /// `host` receives inputs that rest on the host.
  void set_recompute(Recompute mode, HostStack* host) {
    recompute_ = mode;
    host_ = mode == Recompute::block_on_host ? host : nullptr;
  }

 private:
  ResidualPair attend(ResidualPair in, const DropoutSource& dropout, KeyValueCache* cache) const;
  ResidualPair feed_forward(ResidualPair in, const DropoutSource& dropout) const;
  TensorGroup* group_of(const ResidualPair& pair) const {
    return pair.tokens.empty() ? nullptr : share_.group;
  }
  std::vector<Tensor> leaves() const;

  Recompute recompute_ = Recompute::none;
  HostStack* host_ = nullptr;
  std::int64_t layer_;
  TensorShare share_;
  int heads_, first_head_;
  LayerNormLayer ln_1_, ln_2_;
  LinearLayer attention_in_, attention_out_, mlp_in_, mlp_out_;
};

/// Blocks [first, last) of a GPT-2. The part with the first block also embeds, the one with the
/// last block predicts.
struct GPT2Part {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// GPT-2 with Hugging Face's semantics: learned positions, tied vocabulary head. It takes no memory
/// itself: where only some parts have received their tensors, only they can compute.
class GPT2 final : public Module {
 public:
  /// `share`: of several ranks that divide the model's matrices.
  explicit GPT2(const GPT2Config& config, const TensorShare& share = {});

  const GPT2Config& config() const { return config_; }
  const TensorShare& share() const { return share_; }
  const GPT2Shard& shard() const { return shard_; }
  /// The dtype it computes in: that of its weights.
  DType dtype() const { return token_embedding_.dtype(); }
  std::vector<Parameter> parameters() override;
  /// Those of some parts, ascending. The head's table is the embedding's, once.
  std::vector<Parameter> parameters(const std::vector<GPT2Part>& parts);
  /// Called before weights are read in a forward pass: with 0 before the embeddings and the first
  /// block, with the layer before each other block, with n_layer before the final norm.
  void set_before_weights(std::function<void(std::int64_t layer)> hook) {
    before_weights_ = std::move(hook);
  }
  /// What backward passes compute again, layer by layer; nothing at first. Results do not change.
  /// With `host`, which block_on_host needs, forward and backward passes must take turns.
  void set_recompute(const std::vector<Recompute>& per_layer, HostStack* host = nullptr);

  /// The head predicts by a table of its own, which may share the embedding's elements: gradients
  /// of the two are then apart.
  void set_head_table(const Tensor& table) { head_table_ = table; }
  const Tensor& token_embedding() const { return token_embedding_; }

  /// [B, T] itself where ranks divide the tokens of the stream, which they can if each gets as
  /// many; else empty.
  Shape divided(const Shape& tokens) const;

  // A forward pass in its pieces.
  /// `divided`: see above.
  ResidualPair embed(const Tensor& tokens, const DropoutSource& dropout,
                     std::int64_t first_position = 0, const Shape& divided = {}) const;
  ResidualPair blocks(const GPT2Part& part, ResidualPair in, const DropoutSource& dropout,
                      KeyValueCache* cache) const;
  Tensor normalized(const ResidualPair& in) const;
  /// Of hidden states, all or this rank's; see LinearCrossEntropy for the rules of recording.
  LinearCrossEntropy predict(const Tensor& hidden_states, const Tensor& targets,
                             const LinearCrossEntropyOptions& options) const;

  /// The final hidden states [B, T, n_embd] of tokens [B, T].
  Tensor hidden(const Tensor& tokens, const DropoutSource& dropout = {},
                KeyValueCache* cache = nullptr) const;
  /// [B, T, vocabulary] in f32 (f64); of several ranks each has those of its part of the
  /// vocabulary.
  Tensor logits(const Tensor& hidden_states) const;
  /// The same of one token, [1, n_embd], from all ranks: [1, vocab_size].
  Tensor logits_of_token(const Tensor& hidden_state) const;
  /// The loss of predicting targets [B, T].
  LinearCrossEntropy loss(const Tensor& tokens, const Tensor& targets,
                          const LinearCrossEntropyOptions& options,
                          const DropoutSource& dropout = {}) const;

 private:
  GPT2Config config_;
  TensorShare share_;
  GPT2Shard shard_;
  const Tensor& head_table() const { return head_table_ ? head_table_ : token_embedding_; }
  void before_weights(std::int64_t layer) const {
    if (before_weights_) before_weights_(layer);
  }

  Tensor token_embedding_, position_embedding_;
  Tensor head_table_;  ///< none: the embedding's
  std::vector<std::unique_ptr<GPT2Block>> blocks_;
  LayerNormLayer final_norm_;
  std::function<void(std::int64_t)> before_weights_;
};

}  // namespace sluice
