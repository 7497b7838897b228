#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/ops/linear_cross_entropy.h"
#include "engine/rng.h"
#include "models/gpt2/config.h"
#include "models/gpt2/kv_cache.h"
#include "models/gpt2/recompute.h"
#include "models/layers.h"
#include "models/module.h"

namespace sluice {

/// What flows between blocks: the residual stream and the last branch, not yet added. The next
/// LayerNorm adds them, in one pass over memory.
struct ResidualPair {
  Tensor stream;
  Tensor branch;  ///< none before the first block
};

/// One pre-LayerNorm transformer block (Radford et al., 2019).
class GPT2Block final : public Module {
 public:
  GPT2Block(const GPT2Config& config, std::int64_t layer);

  std::vector<Parameter> parameters() override;
  /// `dropout` may be inactive; `cache`, if given, makes this a step of generation.
  ResidualPair forward(ResidualPair in, const DropoutSource& dropout, KeyValueCache* cache) const;
  void set_recompute(Recompute mode) { recompute_ = mode; }

 private:
  ResidualPair attend(ResidualPair in, const DropoutSource& dropout, KeyValueCache* cache) const;
  ResidualPair feed_forward(ResidualPair in, const DropoutSource& dropout) const;
  std::vector<Tensor> leaves() const;

  Recompute recompute_ = Recompute::none;
  std::int64_t layer_;
  int heads_;
  LayerNormLayer ln_1_, ln_2_;
  LinearLayer attention_in_, attention_out_, mlp_in_, mlp_out_;
};

/// GPT-2 with Hugging Face's semantics: learned positions, tied vocabulary head.
class GPT2 final : public Module {
 public:
  explicit GPT2(const GPT2Config& config);

  const GPT2Config& config() const { return config_; }
  /// The dtype it computes in: that of its weights.
  DType dtype() const { return token_embedding_.dtype(); }
  std::vector<Parameter> parameters() override;
  /// Called before weights are read in a forward pass: with 0 before the embeddings and the first
  /// block, with the layer before each other block, with n_layer before the final norm.
  void set_before_weights(std::function<void(std::int64_t layer)> hook) {
    before_weights_ = std::move(hook);
  }
  /// What backward passes compute again, layer by layer; nothing at first. Results do not change.
  void set_recompute(const std::vector<Recompute>& per_layer);

  /// The final hidden states [B, T, n_embd] of tokens [B, T].
  Tensor hidden(const Tensor& tokens, const DropoutSource& dropout = {},
                KeyValueCache* cache = nullptr) const;
  /// [B, T, vocab_size] in f32 (f64).
  Tensor logits(const Tensor& hidden_states) const;
  /// The loss of predicting targets [B, T]; see LinearCrossEntropy for the rules of recording.
  LinearCrossEntropy loss(const Tensor& tokens, const Tensor& targets,
                          const LinearCrossEntropyOptions& options,
                          const DropoutSource& dropout = {}) const;

 private:
  GPT2Config config_;
  Tensor token_embedding_, position_embedding_;
  std::vector<std::unique_ptr<GPT2Block>> blocks_;
  LayerNormLayer final_norm_;
  std::function<void(std::int64_t)> before_weights_;
};

}  // namespace sluice
