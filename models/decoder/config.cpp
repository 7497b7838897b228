#include "models/decoder/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::pair<std::string_view, std::array<std::int64_t, 3>>, 4> presets{{
    {"gpt2", {12, 12, 768}},
    {"gpt2-medium", {24, 16, 1024}},
    {"gpt2-large", {36, 20, 1280}},
    {"gpt2-xl", {48, 25, 1600}},
}};

/// Larger than any model, but small enough that products of a few dimensions are easy to bound.
constexpr std::int64_t largest_size = std::int64_t{1} << 24;

constexpr std::int64_t max_layers = 1 << 14;

void require_size(std::string_view name, std::int64_t value, std::int64_t largest = largest_size) {
  if (value < 1 || value > largest)
    fail(fmt::format("{} is {}; it must be from 1 to {}", name, value, largest), ErrorKind::usage);
}

class ConfigReader {
 public:
  ConfigReader(const Json& json, std::string file) : json_(json), file_(std::move(file)) {}

  std::int64_t size(const char* key) const {
    const auto value = optional_size(key);
    if (!value) fail(fmt::format("{}: \"{}\" is missing", file_, key), ErrorKind::usage);
    return *value;
  }

  std::optional<std::int64_t> optional_size(const char* key) const {
    if (!json_.contains(key) || json_.at(key).is_null()) return std::nullopt;
    const Json& value = json_.at(key);
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() &&
         value.get<std::uint64_t>() > static_cast<std::uint64_t>(largest_size)))
      fail(fmt::format("{}: \"{}\" is {}; it must be a whole number up to {}", file_, key,
                       shown(value), largest_size),
           ErrorKind::usage);
    return value.get<std::int64_t>();
  }

  double positive(const char* key, double fallback) const {
    if (!json_.contains(key)) return fallback;
    const Json& value = json_.at(key);
    if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() >= 1)
      fail(fmt::format("{}: \"{}\" is {}; it must be a number between 0 and 1", file_, key,
                       shown(value)),
           ErrorKind::usage);
    return value.get<double>();
  }

  /// Checks a key that, if present, must have the one value that this program supports.
  void require(const char* key, const Json& expected) const {
    if (!json_.contains(key) || json_.at(key) == expected) return;
    fail(fmt::format("{}: \"{}\" is {}; only {} is supported", file_, key, shown(json_.at(key)),
                     shown(expected)),
         ErrorKind::usage);
  }

 private:
  const Json& json_;
  std::string file_;
};

}  // namespace

std::int64_t DecoderConfig::parameter_count() const {
  const std::int64_t block = 4 * n_embd                                  // two LayerNorms
                             + n_embd * 3 * n_embd + 3 * n_embd          // c_attn
                             + n_embd * n_embd + n_embd                  // attn.c_proj
                             + 2 * n_embd * inner() + inner() + n_embd;  // MLP
  return vocab_size * n_embd + n_positions * n_embd + n_layer * block + 2 * n_embd;
}

double DecoderConfig::flops_per_token(std::int64_t seq_len) const {
  const auto width = static_cast<double>(n_embd);
  const auto layers = static_cast<double>(n_layer);
  const double weights = layers * (4 * width * width + 2 * width * static_cast<double>(inner())) +
                         static_cast<double>(vocab_size) * width;
  return 6 * weights + 6 * layers * static_cast<double>(seq_len) * width;
}

void validate(const DecoderConfig& config) {
  require_size("n_layer", config.n_layer, max_layers);
  require_size("n_head", config.n_head);
  require_size("n_embd", config.n_embd);
  require_size("n_inner", config.inner());
  require_size("vocab_size", config.vocab_size);
  require_size("n_positions", config.n_positions);
  if (config.n_embd % config.n_head != 0)
    fail(fmt::format("n_embd {} is not divisible by n_head {}: {} * {} = {}, remainder {}",
                     config.n_embd, config.n_head, config.n_embd / config.n_head, config.n_head,
                     config.n_embd / config.n_head * config.n_head, config.n_embd % config.n_head),
         ErrorKind::usage);
  // A floating-point bound comes first, so that the exact count below cannot wrap.
  const double width = static_cast<double>(config.n_embd);
  const double count = width * (static_cast<double>(config.vocab_size + config.n_positions) +
                                static_cast<double>(config.n_layer) *
                                    (4 * width + 2 * static_cast<double>(config.inner()) + 16));
  if (count > 1e13)
    fail(fmt::format("the model would have about {:.1e} parameters; n_layer {}, n_embd {} or "
                     "vocab_size {} is too large",
                     count, config.n_layer, config.n_embd, config.vocab_size),
         ErrorKind::usage);
}

std::optional<DecoderConfig> preset(std::string_view name) {
  for (const auto& [known, shape] : presets) {
    if (known != name) continue;
    DecoderConfig config;
    config.n_layer = shape[0];
    config.n_head = shape[1];
    config.n_embd = shape[2];
    return config;
  }
  return std::nullopt;
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  names.reserve(presets.size());
  for (const auto& entry : presets)
    names.push_back(entry.first);
  return names;
}

DecoderConfig read_config(const std::filesystem::path& file) {
  const Json json = read_json_file(file, std::size_t{1} << 20);
  if (!json.is_object())
    fail(fmt::format("{}: a model configuration must be a JSON object", file.string()),
         ErrorKind::usage);
  const ConfigReader reader(json, file.string());
  reader.require("model_type", "gpt2");
  reader.require("activation_function", "gelu_new");
  reader.require("tie_word_embeddings", true);
  reader.require("scale_attn_weights", true);
  reader.require("scale_attn_by_inverse_layer_idx", false);
  reader.require("add_cross_attention", false);
  DecoderConfig config;
  config.n_layer = reader.size("n_layer");
  config.n_head = reader.size("n_head");
  config.n_embd = reader.size("n_embd");
  config.vocab_size = reader.size("vocab_size");
  config.n_positions = reader.size("n_positions");
  const auto inner = reader.optional_size("n_inner");
  config.n_inner = inner.value_or(0);
  config.layer_norm_epsilon = reader.positive("layer_norm_epsilon", 1e-5);
  try {
    validate(config);
    // validate() accepts n_inner 0 as "not given", so a number in the file is checked here.
    if (inner) require_size("n_inner", *inner);
  } catch (const Error& error) {
    fail(fmt::format("{}: {}", file.string(), error.what()), ErrorKind::usage);
  }
  return config;
}

std::string config_json(const DecoderConfig& config, std::string_view torch_dtype,
                        std::int64_t end_of_text) {
  nlohmann::ordered_json json{
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "gpt2"},
      {"activation_function", "gelu_new"},
      {"n_layer", config.n_layer},
      {"n_head", config.n_head},
      {"n_embd", config.n_embd},
      {"n_inner", nullptr},
      {"n_positions", config.n_positions},
      {"n_ctx", config.n_positions},
      {"vocab_size", config.vocab_size},
      {"layer_norm_epsilon", config.layer_norm_epsilon},
      {"initializer_range", 0.02},
      {"scale_attn_weights", true},
      {"tie_word_embeddings", true},
      {"attn_pdrop", 0.0},
      {"embd_pdrop", 0.0},
      {"resid_pdrop", 0.0},
      {"torch_dtype", torch_dtype},
  };
  if (config.n_inner != 0) json["n_inner"] = config.n_inner;
  // Hugging Face fills missing ids with 50256, which a small vocabulary does not have.
  json["bos_token_id"] = end_of_text >= 0 ? nlohmann::ordered_json(end_of_text) : nullptr;
  json["eos_token_id"] = json["bos_token_id"];
  return json.dump(2) + "\n";
}

}  // namespace sluice
