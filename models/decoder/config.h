#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ops/linear/linear.h"
#include "engine/ops/linear/mlp.h"
#include "engine/ops/norm.h"
#include "models/decoder/rotary_config.h"
#include "models/lora/lora_config.h"

namespace sluice {

/// Largest size of any kind: beyond all models, but small enough that products of a few dimensions
/// are easy to bound.
inline constexpr std::int64_t largest_size = std::int64_t{1} << 24;

/// Families of models, which differ in the names of their parameters and in config.json.
enum class Family : std::uint8_t { gpt2, gptj, gpt_neox, llama, mistral, qwen2, qwen3 };

/// Probabilities of dropout in training, as a config.json has them.
struct DropoutConfig {
  double embedding = 0, attention = 0;
  double residual = 0;  ///< of what attention and the MLP add to the residual stream

  friend bool operator==(const DropoutConfig&, const DropoutConfig&) = default;
};

/// Each kind of block adds other branches to the residual stream x.
enum class BlockKind : std::uint8_t {
  sequential,  ///< y = x + attention(norm_1(x)), then y + mlp(norm_2(y))
  parallel,    ///< x + attention(norm_1(x)) + mlp(norm_2(x)) (Black et al., "GPT-NeoX-20B", 2022)
  parallel_one_norm  ///< x + attention(norm_1(x)) + mlp(norm_1(x)) (Wang, "GPT-J-6B", 2021)
};

/// A decoder: pre-norm transformer blocks of causal attention and an MLP. The defaults are GPT-2's.
/// Names are those of GPT-2's config.json where it has them.
struct DecoderConfig {
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_embd = 768;
  std::int64_t n_inner = 0;  ///< width of the MLP; 0: 4 * n_embd
  std::int64_t vocab_size = 50257;
  std::int64_t n_positions = 1024;
  /// Tokens that attention sees in layers with a sliding window, the last one included; 0: no layer
  /// has one. Windows are not computed, so sequences are no longer than this.
  std::int64_t window = 0;
  double layer_norm_epsilon = 1e-5;  ///< of either kind of norm

  Family family = Family::gpt2;
  std::int64_t n_kv_head = 0;   ///< heads of k and v; 0: n_head
  std::int64_t head_width = 0;  ///< 0: n_embd / n_head
  BlockKind block = BlockKind::sequential;
  NormKind norm = NormKind::layernorm;
  bool norm_bias = true;                 ///< false: LayerNorm has no bias
  bool query_key_norm = false;           ///< RMSNorm of each head of q and k
  bool fused_heads = false;              ///< the matrix of q, k and v has them head by head
  std::optional<RotaryConfig> rotary{};  ///< none: a table of learned positions
  MlpActivation activation = MlpActivation::gelu;
  WeightLayout layout = WeightLayout::in_out;
  /// Biases of q, k and v, of attention's output, of the MLP's matrices, of the vocabulary head.
  bool qkv_bias = true, output_bias = true, mlp_bias = true, head_bias = false;
  bool tied = true;  ///< the vocabulary head is the token table
  DropoutConfig dropout{};
  /// The token whose row in the table gets no gradient from the tokens of a text.
  std::optional<std::int64_t> padding_id{};
  /// Keys of config.json that decide nothing here, as a JSON object; they are written again.
  std::string unused_keys{};
  /// Ids of config.json that begin and end a text; written again where no tokenizer knows better.
  std::optional<std::int64_t> begin_id{};
  std::vector<std::int64_t> end_ids{};
  LoraConfig lora{};  ///< with rank 0: no adapters. No part of config.json.

  /// Tokens of the longest sequence that is computed.
  std::int64_t longest_sequence() const {
    return window > 0 && window < n_positions ? window : n_positions;
  }
  std::int64_t inner() const { return n_inner != 0 ? n_inner : 4 * n_embd; }
  std::int64_t kv_heads() const { return n_kv_head != 0 ? n_kv_head : n_head; }
  std::int64_t width_of_head() const { return head_width != 0 ? head_width : n_embd / n_head; }
  /// Columns of q, of k or of v, and of all three.
  std::int64_t query_width() const { return n_head * width_of_head(); }
  std::int64_t key_width() const { return kv_heads() * width_of_head(); }
  std::int64_t qkv_width() const { return query_width() + 2 * key_width(); }
  /// Columns of a head that rotary positions turn.
  std::int64_t rotary_width() const {
    return rotary && rotary->width != 0 ? rotary->width : width_of_head();
  }
  /// Columns that the MLP's first matrix computes.
  std::int64_t mlp_columns() const {
    return (activation == MlpActivation::swiglu ? 2 : 1) * inner();
  }

  bool has_norm_bias() const { return norm == NormKind::layernorm && norm_bias; }
  /// Vectors of a norm: a gain, and LayerNorm's bias if it has one.
  std::int64_t norm_vectors() const { return has_norm_bias() ? 2 : 1; }
  /// Norms of the residual stream in a block.
  std::int64_t block_norms() const { return block == BlockKind::parallel_one_norm ? 1 : 2; }
  /// Parameters in all norms of a block.
  std::int64_t norm_parameters() const {
    return block_norms() * norm_vectors() * n_embd + (query_key_norm ? 2 * width_of_head() : 0);
  }
  std::int64_t parameter_count() const;
  std::int64_t block_parameters() const;
  /// Those of the tables of tokens and positions.
  std::int64_t embedding_parameters() const;
  /// Parameters in the matrices of a block.
  std::int64_t block_matrices() const {
    return n_embd * (qkv_width() + query_width() + mlp_columns() + inner());
  }
  /// Floating-point operations of forward and backward per token at sequence length T: 6 per weight
  /// of a matrix product, plus 6 * layers * T * query_width. A multiply-add counts as two
  /// operations, and causal attention as half.
  double flops_per_token(std::int64_t seq_len) const;

  /// The model with its own weights alone.
  DecoderConfig without_adapters() const;

  bool operator==(const DecoderConfig&) const = default;
};

/// Throws Error (usage) naming the field, for zero or negative sizes, heads that do not divide, or
/// products that do not fit in 63 bits.
void validate(const DecoderConfig& config);

/// Throws Error (usage) that begins with `what`, such as a flag and its value, unless a sequence of
/// `length` tokens can be computed.
void require_length(const DecoderConfig& config, std::int64_t length, std::string_view what);

/// Returns a configuration with everything that a family decides, and GPT-2's sizes.
DecoderConfig config_of(Family family);
/// Makes a GPT-2 one without biases, in layers and norms, as nanoGPT's `bias=False`.
void leave_out_biases(DecoderConfig& config);
/// Returns the "model_type" of a family's config.json.
std::string_view name_of(Family family);

/// Returns the angles of a decoder's rotary positions; none if it learns its positions.
std::optional<RotaryAngles> rotary_angles(const DecoderConfig& config);

/// Returns the shape of a published model, such as gpt2-xl or llama-3.2-1b; none for another name.
std::optional<DecoderConfig> preset(std::string_view name);
std::vector<std::string_view> preset_names();

}  // namespace sluice
