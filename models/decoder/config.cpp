#include "models/decoder/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/query_key_norm.h"

namespace sluice {
namespace {

/// The shape of a published model, as its config.json has it.
struct Preset {
  std::string_view name;
  Family family;
  std::int64_t layers, heads, kv_heads, width, inner, vocabulary, context;
  double epsilon, base;
  bool tied;
  double llama3_factor = 0;     ///< 0: no scaling
  std::int64_t head_width = 0;  ///< 0: width / heads
};

constexpr Preset gpt2_of(std::string_view name, std::int64_t layers, std::int64_t heads,
                         std::int64_t width) {
  return {name, Family::gpt2, layers, heads, 0, width, 0, 50257, 1024, 1e-5, 0, true};
}

constexpr std::array presets{
    gpt2_of("gpt2", 12, 12, 768),
    gpt2_of("gpt2-medium", 24, 16, 1024),
    gpt2_of("gpt2-large", 36, 20, 1280),
    gpt2_of("gpt2-xl", 48, 25, 1600),
    Preset{"gptj-6b", Family::gptj, 28, 16, 0, 4096, 16384, 50400, 2048, 1e-5, 1e4, false},
    Preset{"pythia-160m", Family::gpt_neox, 12, 12, 0, 768, 3072, 50304, 2048, 1e-5, 1e4, false},
    Preset{"pythia-1.4b", Family::gpt_neox, 24, 16, 0, 2048, 8192, 50304, 2048, 1e-5, 1e4, false},
    Preset{"smollm2-135m", Family::llama, 30, 9, 3, 576, 1536, 49152, 8192, 1e-5, 1e5, true},
    Preset{"tinyllama-1.1b", Family::llama, 22, 32, 4, 2048, 5632, 32000, 2048, 1e-5, 1e4, false},
    Preset{"llama-3.2-1b", Family::llama, 16, 32, 8, 2048, 8192, 128256, 131072, 1e-5, 5e5, true,
           32},
    Preset{"llama-3.1-8b", Family::llama, 32, 32, 8, 4096, 14336, 128256, 131072, 1e-5, 5e5, false,
           8},
    Preset{"mistral-7b", Family::mistral, 32, 32, 8, 4096, 14336, 32768, 32768, 1e-5, 1e6, false},
    Preset{"qwen2.5-0.5b", Family::qwen2, 24, 14, 2, 896, 4864, 151936, 32768, 1e-6, 1e6, true},
    Preset{"qwen3-0.6b", Family::qwen3, 28, 16, 8, 1024, 3072, 151936, 40960, 1e-6, 1e6, true, 0,
           128},
    Preset{"qwen3-8b", Family::qwen3, 36, 32, 8, 4096, 12288, 151936, 40960, 1e-6, 1e6, false, 0,
           128},
};

DecoderConfig config_of(const Preset& preset) {
  DecoderConfig config = config_of(preset.family);
  config.n_layer = preset.layers;
  config.n_head = preset.heads;
  config.n_kv_head = preset.kv_heads;
  config.n_embd = preset.width;
  config.n_inner = preset.inner;
  config.vocab_size = preset.vocabulary;
  config.n_positions = preset.context;
  config.layer_norm_epsilon = preset.epsilon;
  config.tied = preset.tied;
  config.head_width = preset.head_width;
  if (config.rotary) config.rotary->base = preset.base;
  if (preset.family == Family::gpt_neox) config.rotary->width = config.width_of_head() / 4;
  if (preset.llama3_factor > 0)
    config.rotary->llama3 = Llama3Scaling{.factor = preset.llama3_factor};
  return config;
}

constexpr std::int64_t max_layers = 1 << 14;

void require_size(std::string_view name, std::int64_t value, std::int64_t largest = largest_size) {
  if (value < 1 || value > largest)
    fail(fmt::format("{} is {}; it must be from 1 to {}", name, value, largest), ErrorKind::usage);
}

/// The sentence for `count` things that do not divide into `parts`.
[[noreturn]] void refuse_division(std::string_view what, std::int64_t count, std::string_view into,
                                  std::int64_t parts) {
  fail(fmt::format("{} {} is not divisible by {} {}: {} * {} = {}, remainder {}", what, count, into,
                   parts, count / parts, parts, count / parts * parts, count % parts),
       ErrorKind::usage);
}

/// The angle from one position to the next, in radians (rotary positions, eq. 15; the scaling is
/// that of the code published with Llama 3.1).
long double frequency(const RotaryConfig& rotary, std::int64_t pair, std::int64_t width) {
  const long double plain =
      std::pow(static_cast<long double>(rotary.base),
               -2.0L * static_cast<long double>(pair) / static_cast<long double>(width)) /
      static_cast<long double>(rotary.divisor);
  if (!rotary.llama3) return plain;
  const Llama3Scaling& scaling = *rotary.llama3;
  const long double waves = static_cast<long double>(scaling.original_context) * plain /
                            (2 * std::numbers::pi_v<long double>);  // in the original context
  if (waves > static_cast<long double>(scaling.high_frequency)) return plain;
  const long double scaled = plain / static_cast<long double>(scaling.factor);
  if (waves < static_cast<long double>(scaling.low_frequency)) return scaled;
  const long double smooth =
      (waves - static_cast<long double>(scaling.low_frequency)) /
      static_cast<long double>(scaling.high_frequency - scaling.low_frequency);
  return (1 - smooth) * scaled + smooth * plain;
}

}  // namespace

std::int64_t DecoderConfig::block_parameters() const {
  return norm_parameters() + block_matrices() + (qkv_bias ? qkv_width() : 0) +
         (output_bias ? n_embd : 0) + (mlp_bias ? mlp_columns() + n_embd : 0);
}

std::int64_t DecoderConfig::embedding_parameters() const {
  return (vocab_size + (rotary ? 0 : n_positions)) * n_embd;
}

std::int64_t DecoderConfig::parameter_count() const {
  const std::int64_t head = (tied ? 0 : vocab_size * n_embd) + (head_bias ? vocab_size : 0);
  return embedding_parameters() + head + n_layer * block_parameters() + norm_vectors() * n_embd;
}

double DecoderConfig::flops_per_token(std::int64_t seq_len) const {
  const auto width = static_cast<double>(n_embd), query = static_cast<double>(query_width());
  const auto layers = static_cast<double>(n_layer);
  const double weights =
      layers * static_cast<double>(block_matrices()) + static_cast<double>(vocab_size) * width;
  // Weights that are not trained have no products for their gradients.
  return (lora.rank > 0 ? 4 : 6) * weights + 6 * layers * static_cast<double>(seq_len) * query;
}

void validate(const DecoderConfig& config) {
  require_size("n_layer", config.n_layer, max_layers);
  require_size("n_head", config.n_head);
  require_size("n_embd", config.n_embd);
  require_size("n_inner", config.inner());
  require_size("vocab_size", config.vocab_size);
  require_size("n_positions", config.n_positions);
  require_size("n_kv_head", config.kv_heads(), config.n_head);
  if (config.head_width == 0 && config.n_embd % config.n_head != 0)
    refuse_division("n_embd", config.n_embd, "n_head", config.n_head);
  if (config.n_head % config.kv_heads() != 0)
    refuse_division("n_head", config.n_head, "n_kv_head", config.kv_heads());
  require_size("head_width", config.width_of_head());
  const std::int64_t turned = config.rotary_width();
  const std::int64_t widest =
      std::min<std::int64_t>(config.width_of_head(), RotaryAngles::max_width);
  if (config.rotary && (turned < 2 || turned % 2 != 0 || turned > widest))
    fail(fmt::format("{} is {}; with rotary positions it must be even and at most {}",
                     config.rotary->width != 0 ? "rotary width" : "head_width", turned, widest),
         ErrorKind::usage);
  if (config.query_key_norm && config.width_of_head() > QueryKeyNormForward::max_width)
    fail(fmt::format("head_width is {}; with norms of q and k it must be at most {}",
                     config.width_of_head(), QueryKeyNormForward::max_width),
         ErrorKind::usage);
  // A floating-point bound comes first, so that the exact count below cannot wrap.
  const auto wide = [](std::int64_t value) { return static_cast<double>(value); };
  const double query = wide(config.n_head) * wide(config.width_of_head());
  const double count =
      wide(config.n_embd) * (2 * wide(config.vocab_size) + wide(config.n_positions) +
                             wide(config.n_layer) * (4 * query + 3 * wide(config.inner()) + 16));
  if (count > 1e13)
    fail(fmt::format("the model would have about {:.1e} parameters; n_layer {}, n_embd {} or "
                     "vocab_size {} is too large",
                     count, config.n_layer, config.n_embd, config.vocab_size),
         ErrorKind::usage);
}

void require_length(const DecoderConfig& config, std::int64_t length, std::string_view what) {
  if (length > config.n_positions)
    fail(fmt::format("{} is longer than the model's context of {}; give {} at most", what,
                     config.n_positions, config.longest_sequence()),
         ErrorKind::usage);
  if (length > config.longest_sequence())
    fail(fmt::format("{} is longer than the model's sliding window of {}, beyond which nothing is "
                     "computed yet; give {} at most",
                     what, config.window, config.longest_sequence()),
         ErrorKind::usage);
}

DecoderConfig config_of(Family family) {
  DecoderConfig config;
  config.family = family;
  if (family == Family::gpt2) return config;
  config.layout = WeightLayout::out_in;
  config.tied = false;
  if (family == Family::gpt_neox) {
    config.block = BlockKind::parallel;
    config.rotary = RotaryConfig{};
    config.activation = MlpActivation::exact_gelu;
    config.fused_heads = true;
    return config;
  }
  config.qkv_bias = family == Family::qwen2;
  config.output_bias = false;
  if (family == Family::gptj) {
    config.block = BlockKind::parallel_one_norm;
    config.rotary = RotaryConfig{.width = 64, .pairs = RotaryPairs::interleaved};
    config.head_bias = true;
    return config;
  }
  config.norm = NormKind::rmsnorm;
  config.query_key_norm = family == Family::qwen3;
  config.rotary = RotaryConfig{};
  config.activation = MlpActivation::swiglu;
  config.mlp_bias = false;
  return config;
}

void leave_out_biases(DecoderConfig& config) {
  config.norm_bias = config.qkv_bias = config.output_bias = config.mlp_bias = false;
}

std::string_view name_of(Family family) {
  switch (family) {
    case Family::gpt2:
      return "gpt2";
    case Family::gptj:
      return "gptj";
    case Family::gpt_neox:
      return "gpt_neox";
    case Family::llama:
      return "llama";
    case Family::mistral:
      return "mistral";
    case Family::qwen2:
      return "qwen2";
    case Family::qwen3:
      return "qwen3";
  }
  fail("a family of models without a name");
}

std::optional<RotaryAngles> rotary_angles(const DecoderConfig& config) {
  if (!config.rotary) return std::nullopt;
  const std::int64_t width = config.rotary_width();
  RotaryAngles angles{.width = static_cast<int>(width), .pairs = config.rotary->pairs};
  for (std::int64_t pair = 0; pair < width / 2; ++pair)
    angles.turns[static_cast<std::size_t>(pair)] = static_cast<std::uint64_t>(std::ldexp(
        frequency(*config.rotary, pair, width) / (2 * std::numbers::pi_v<long double>), 64));
  return angles;
}

DecoderConfig DecoderConfig::without_adapters() const {
  DecoderConfig config = *this;
  config.lora = {};
  return config;
}

std::optional<DecoderConfig> preset(std::string_view name) {
  for (const Preset& known : presets)
    if (known.name == name) return config_of(known);
  return std::nullopt;
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  names.reserve(presets.size());
  for (const Preset& known : presets)
    names.push_back(known.name);
  return names;
}

}  // namespace sluice
