#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// The shape of a GPT-2 model, with the field names of Hugging Face's config.json.
struct DecoderConfig {
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_embd = 768;
  std::int64_t n_inner = 0;  ///< width of the MLP; 0: 4 * n_embd
  std::int64_t vocab_size = 50257;
  std::int64_t n_positions = 1024;
  double layer_norm_epsilon = 1e-5;

  std::int64_t inner() const { return n_inner != 0 ? n_inner : 4 * n_embd; }
  std::int64_t parameter_count() const;
  /// Floating-point operations of forward and backward per token at sequence length T: 6 per weight
  /// of a matrix product, plus 6 * layers * T * n_embd. A multiply-add counts as two operations,
  /// and causal attention as half.
  double flops_per_token(std::int64_t seq_len) const;

  bool operator==(const DecoderConfig&) const = default;
};

/// Throws Error (usage) naming the field, for zero or negative sizes, n_embd not divisible by
/// n_head, or products that do not fit in 63 bits.
void validate(const DecoderConfig& config);

/// Returns the shape named gpt2, gpt2-medium, gpt2-large or gpt2-xl; none for another name.
std::optional<DecoderConfig> preset(std::string_view name);
std::vector<std::string_view> preset_names();

/// Reads a Hugging Face config.json. Checks types and ranges, and that the model is a GPT-2 that
/// this program can compute (activation gelu_new, tied embeddings, scaled attention).
DecoderConfig read_config(const std::filesystem::path& file);
/// Returns the text of a config.json that Hugging Face opens. An `end_of_text` below 0 is left out.
std::string config_json(const DecoderConfig& config, std::string_view torch_dtype,
                        std::int64_t end_of_text);

}  // namespace sluice
