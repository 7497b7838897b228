#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/offload/host_stack.h"
#include "engine/ops/attention.h"
#include "engine/rng.h"
#include "models/decoder/config.h"
#include "models/decoder/recompute.h"
#include "models/layers.h"

namespace sluice {

struct KeyValueCache;  // models/decoder/generate.h
/// The cache of each sequence; none if nothing is generated.
using KeyValueCaches = std::span<KeyValueCache* const>;

/// The activations passed between blocks: the residual stream and the last branch, not yet added.
/// The next norm adds the two in its pass over memory.
struct ResidualPair {
  Tensor stream;
  Tensor branch;   ///< none before the first block
  Shape tokens{};  ///< [B, T] if ranks divide the tokens, else empty; see TensorGroup
  Documents documents{};
};

/// Applies dropout to a residual stream, or to this rank's stretch of one; see
/// ResidualPair::tokens.
Tensor drop_stream(const Tensor& x, const Shape& tokens, const TensorShare& share,
                   const DropoutMask& mask);

/// One pre-norm transformer block (Radford et al., 2019; Touvron et al., "LLaMA", 2023).
class DecoderBlock final : public Module {
 public:
  DecoderBlock(const DecoderConfig& config, std::int64_t layer, const TensorShare& share);

  std::vector<Parameter> parameters() override;
  /// Those of the low-rank adapters, which are trained instead of the others if there are some.
  std::vector<Parameter> adapter_parameters();
  /// `dropout` may be inactive; `caches` make this a step of generation.
  ResidualPair forward(ResidualPair in, const DropoutSource& dropout, KeyValueCaches caches) const;
  /// `host` receives the inputs that block_on_host offloads to host memory.
  void set_recompute(Recompute mode, HostStack* host) {
    recompute_ = mode;
    host_ = mode == Recompute::block_on_host ? host : nullptr;
  }

 private:
  ResidualPair compute(ResidualPair in, const DropoutSource& dropout, KeyValueCaches caches) const;
  // The two branches of a block, from a norm of the stream. `tokens`: see ResidualPair.
  Tensor attend(const ResidualNorm& x, const Shape& tokens, const Documents& documents,
                const DropoutSource& dropout, KeyValueCaches caches) const;
  Tensor feed_forward(const ResidualNorm& x, const Shape& tokens,
                      const DropoutSource& dropout) const;
  std::vector<Tensor> leaves() const;
  AttentionOptions attention_options() const {
    return {.heads = heads_, .rotary = rotary_ ? &*rotary_ : nullptr, .first_head = first_head_};
  }

  Recompute recompute_ = Recompute::none;
  HostStack* host_ = nullptr;
  std::int64_t layer_;
  TensorShare share_;
  BlockKind kind_;
  bool fused_heads_;
  AttentionHeads heads_;
  std::int64_t head_width_;
  int sharers_ = 1;  ///< see DecoderShard
  int first_head_;
  std::optional<RotaryAngles> rotary_;
  MlpActivation activation_;
  NormLayer norm_1_, norm_2_, query_norm_, key_norm_;  ///< those that are not there have width 0
  LinearLayer attention_in_, attention_out_, mlp_in_, mlp_out_;
};

}  // namespace sluice
