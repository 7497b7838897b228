#include "models/decoder/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/decoder/names.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

class ConfigReader {
 public:
  ConfigReader(const Json& json, std::string file) : json_(json), file_(std::move(file)) {}

  [[noreturn]] void refuse(const char* key, const std::string& what) const {
    fail(fmt::format("{}: \"{}\" is {}; {}", file_, key, shown(json_.at(key)), what),
         ErrorKind::usage);
  }
  /// True if the key is there and not null.
  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }

  std::int64_t size(const char* key) const {
    const auto value = optional_size(key);
    if (!value) fail(fmt::format("{}: \"{}\" is missing", file_, key), ErrorKind::usage);
    return *value;
  }

  std::optional<std::int64_t> optional_size(const char* key) const {
    if (!has(key)) return std::nullopt;
    const Json& value = json_.at(key);
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() &&
         value.get<std::uint64_t>() > static_cast<std::uint64_t>(largest_size)))
      refuse(key, fmt::format("it must be a whole number up to {}", largest_size));
    return value.get<std::int64_t>();
  }
  /// The same, but a value below 1 is refused rather than taken for "not given".
  std::int64_t positive_size(const char* key, std::int64_t fallback) const {
    const auto value = optional_size(key);
    if (value && *value < 1) refuse(key, fmt::format("it must be from 1 to {}", largest_size));
    return value.value_or(fallback);
  }

  double positive(const char* key, double fallback) const {
    if (!json_.contains(key)) return fallback;
    const Json& value = json_.at(key);
    if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() >= 1)
      refuse(key, "it must be a number between 0 and 1");
    return value.get<double>();
  }
  /// A number above 0 and up to 1.
  double share(const char* key, double fallback) const {
    if (!has(key)) return fallback;
    const Json& value = json_.at(key);
    if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() > 1)
      refuse(key, "it must be a number above 0, at most 1");
    return value.get<double>();
  }
  /// A number of at least 1, such as a factor or the base of rotary positions.
  double factor(const char* key, double fallback) const {
    if (!has(key)) return fallback;
    const Json& value = json_.at(key);
    if (!value.is_number() || !(value.get<double>() >= 1) || value.get<double>() > 1e15)
      refuse(key, "it must be a number from 1 to 1e15");
    return value.get<double>();
  }
  bool boolean(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!json_.at(key).is_boolean()) refuse(key, "it must be true or false");
    return json_.at(key).get<bool>();
  }

  /// The activation that a key names as transformers does.
  MlpActivation activation(const char* key) const {
    const Json& name = json_.at(key);
    // These are names of one function.
    if (name == "gelu_fast" || name == "gelu_new" || name == "gelu_pytorch_tanh")
      return MlpActivation::gelu;
    if (name == "gelu") return MlpActivation::exact_gelu;
    if (name == "relu") return MlpActivation::relu;
    refuse(key, "only \"gelu_new\" (or \"gelu_fast\"), \"gelu\" and \"relu\" are supported");
  }

  /// The ids of a key, one or a list, that a vocabulary has; others are no use to anybody.
  std::vector<std::int64_t> ids(const char* key, std::int64_t vocabulary) const {
    std::vector<std::int64_t> ids;
    if (!has(key)) return ids;
    const Json& value = json_.at(key);
    for (const Json& id : value.is_array() ? value : Json::array({value}))
      if (id.is_number_integer() && id >= 0 && id < vocabulary)
        ids.push_back(id.get<std::int64_t>());
    return ids;
  }

  /// Checks a key that, if present, must have the one value that this program supports.
  void require(const char* key, const Json& expected) const {
    if (!json_.contains(key) || json_.at(key) == expected) return;
    refuse(key, fmt::format("only {} is supported", shown(expected)));
  }

  /// The object that a key has, under which errors name their keys.
  ConfigReader object(const char* key) const {
    if (!json_.at(key).is_object()) refuse(key, "it must be an object");
    return {json_.at(key), fmt::format("{}: {}", file_, key)};
  }
  const Json& json() const { return json_; }

 private:
  const Json& json_;
  std::string file_;
};

/// Families whose config.json has GPT-2's keys; the others have Llama's.
bool is_gpt(Family family) {
  return family == Family::gpt2 || family == Family::gptj;
}

DecoderConfig read_gpt(const ConfigReader& reader, Family family) {
  DecoderConfig config = config_of(family);
  if (reader.has("activation_function"))
    config.activation = reader.activation("activation_function");
  if (family == Family::gpt2) {
    if (!reader.boolean("bias", true)) leave_out_biases(config);
    reader.require("tie_word_embeddings", true);
    reader.require("scale_attn_weights", true);
    reader.require("scale_attn_by_inverse_layer_idx", false);
    reader.require("add_cross_attention", false);
  } else {
    config.tied = reader.boolean("tie_word_embeddings", false);
    if (reader.json().contains("rotary_dim") && !reader.has("rotary_dim"))
      reader.refuse("rotary_dim", "it must be a whole number");
    config.rotary->width = reader.positive_size("rotary_dim", config.rotary->width);
  }
  config.n_layer = reader.size("n_layer");
  config.n_head = reader.size("n_head");
  config.n_embd = reader.size("n_embd");
  config.vocab_size = reader.size("vocab_size");
  config.n_positions = reader.size("n_positions");
  config.n_inner = reader.positive_size("n_inner", 0);
  config.layer_norm_epsilon = reader.positive("layer_norm_epsilon", 1e-5);
  return config;
}

/// The frequencies as transformers 5 writes them ("rope_parameters"), or version 4 ("rope_theta"
/// and "rope_scaling"). Version 5 may write both; the newer one counts.
RotaryConfig read_rotary(const ConfigReader& reader) {
  RotaryConfig rotary;
  const bool newer = reader.has("rope_parameters");
  if (!newer) rotary.base = reader.factor("rope_theta", rotary.base);
  const char* const key = newer ? "rope_parameters" : "rope_scaling";
  if (!reader.has(key)) return rotary;
  const ConfigReader rope = reader.object(key);
  if (newer) rotary.base = rope.factor("rope_theta", reader.factor("rope_theta", rotary.base));
  const char* const type_key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  const Json type = rope.has(type_key) ? rope.json().at(type_key) : Json("default");
  rope.require("partial_rotary_factor", 1.0);
  if (type == "linear") {
    rotary.divisor = rope.factor("factor", 1);
  } else if (type == "llama3") {
    Llama3Scaling scaling;
    scaling.factor = rope.factor("factor", scaling.factor);
    scaling.low_frequency = rope.factor("low_freq_factor", scaling.low_frequency);
    scaling.high_frequency = rope.factor("high_freq_factor", scaling.high_frequency);
    scaling.original_context =
        rope.positive_size("original_max_position_embeddings", scaling.original_context);
    if (scaling.high_frequency <= scaling.low_frequency)
      rope.refuse(rope.has("high_freq_factor") ? "high_freq_factor" : "low_freq_factor",
                  "high_freq_factor must be above low_freq_factor");
    rotary.llama3 = scaling;
  } else if (type != "default") {
    rope.refuse(type_key, "only \"default\", \"linear\" and \"llama3\" are supported");
  }
  return rotary;
}

/// The default window of transformers' MistralConfig, Qwen2Config and Qwen3Config.
constexpr std::int64_t default_window = 4096;

DecoderConfig read_llama(const ConfigReader& reader, Family family) {
  reader.require("hidden_act", "silu");
  reader.require("attention_bias", false);
  reader.require("mlp_bias", false);
  reader.require("pretraining_tp", 1);
  reader.require("partial_rotary_factor", 1.0);
  DecoderConfig config = config_of(family);
  config.n_layer = reader.size("num_hidden_layers");
  config.n_head = reader.size("num_attention_heads");
  // Transformers takes a missing key for the number of one size of Mistral or Qwen, and null for
  // as many heads as q has.
  const char* const shared = "num_key_value_heads";
  if (family != Family::llama && !reader.json().contains(shared)) reader.size(shared);
  config.n_kv_head = reader.positive_size("num_key_value_heads", 0);
  config.head_width = reader.positive_size("head_dim", 0);
  config.n_embd = reader.size("hidden_size");
  config.n_inner = reader.positive_size("intermediate_size", 0);
  if (config.n_inner == 0) reader.size("intermediate_size");  // says that it is missing
  // What is left out is made explicit, so that it is written as it was read.
  if (config.n_kv_head == 0) config.n_kv_head = config.n_head;
  if (config.head_width == 0 && family == Family::qwen3) config.head_width = 128;
  if (config.head_width == 0 && config.n_head > 0 && config.n_embd % config.n_head == 0)
    config.head_width = config.n_embd / config.n_head;
  config.vocab_size = reader.size("vocab_size");
  config.n_positions = reader.size("max_position_embeddings");
  config.layer_norm_epsilon = reader.positive("rms_norm_eps", 1e-6);
  config.rotary = read_rotary(reader);
  config.tied = reader.boolean("tie_word_embeddings", false);
  const bool window = family == Family::mistral || reader.boolean("use_sliding_window", false);
  if (window && family != Family::llama) {
    // Transformers takes a missing key for its default, and null for no window.
    const std::int64_t width = reader.json().contains("sliding_window")
                                   ? reader.positive_size("sliding_window", config.n_positions)
                                   : default_window;
    config.n_positions = std::min(config.n_positions, width);
  }
  return config;
}

/// GPT-NeoX's config.json, of transformers 5 ("rope_parameters") or 4 ("rotary_pct",
/// "rotary_emb_base").
DecoderConfig read_neox(const ConfigReader& reader) {
  reader.require("attention_bias", true);
  DecoderConfig config = config_of(Family::gpt_neox);
  if (reader.has("hidden_act")) config.activation = reader.activation("hidden_act");
  if (!reader.boolean("use_parallel_residual", true)) config.block = BlockKind::sequential;
  config.n_layer = reader.size("num_hidden_layers");
  config.n_head = reader.size("num_attention_heads");
  config.n_embd = reader.size("hidden_size");
  config.n_inner = reader.positive_size("intermediate_size", 0);
  if (config.n_inner == 0) reader.size("intermediate_size");  // says that it is missing
  config.vocab_size = reader.size("vocab_size");
  config.n_positions = reader.size("max_position_embeddings");
  config.layer_norm_epsilon = reader.positive("layer_norm_eps", 1e-5);
  config.tied = reader.boolean("tie_word_embeddings", false);
  double part = reader.share("rotary_pct", 0.25);
  config.rotary->base = reader.factor("rotary_emb_base", config.rotary->base);
  if (reader.has("rope_parameters")) {
    const ConfigReader rope = reader.object("rope_parameters");
    rope.require("rope_type", "default");
    config.rotary->base = rope.factor("rope_theta", config.rotary->base);
    part = rope.share("partial_rotary_factor", part);
  } else {
    reader.require("rope_scaling", nullptr);
  }
  if (config.n_head < 1 || config.n_embd % config.n_head != 0) return config;  // refused later
  config.rotary->width =
      static_cast<std::int64_t>(static_cast<double>(config.width_of_head()) * part);
  if (config.rotary->width == 0)
    reader.refuse(reader.has("rope_parameters") ? "rope_parameters"
                  : reader.has("rotary_pct")    ? "rotary_pct"
                                                : "hidden_size",
                  fmt::format("{} of the columns of a head are none", part));
  return config;
}

}  // namespace

DecoderConfig read_config(const std::filesystem::path& file) {
  return parse_config(read_json_file(file, std::size_t{1} << 20), file.string());
}

DecoderConfig parse_config(const Json& json, const std::string& file) {
  if (!json.is_object())
    fail(fmt::format("{}: a model configuration must be a JSON object", file), ErrorKind::usage);
  const ConfigReader reader(json, file);
  const Json type = json.contains("model_type") ? json.at("model_type") : Json("gpt2");
  constexpr Family families[] = {Family::gpt2,    Family::gptj,  Family::gpt_neox, Family::llama,
                                 Family::mistral, Family::qwen2, Family::qwen3};
  const auto* const family =
      std::ranges::find_if(families, [&](Family one) { return type == name_of(one); });
  if (family == std::end(families))
    reader.refuse("model_type",
                  "only \"gpt2\", \"gptj\", \"gpt_neox\", \"llama\", \"mistral\", \"qwen2\" and "
                  "\"qwen3\" are supported");
  DecoderConfig config = is_gpt(*family)               ? read_gpt(reader, *family)
                         : *family == Family::gpt_neox ? read_neox(reader)
                                                       : read_llama(reader, *family);
  const std::vector<std::int64_t> begin = reader.ids("bos_token_id", config.vocab_size);
  if (begin.size() == 1) config.begin_id = begin.front();
  config.end_ids = reader.ids("eos_token_id", config.vocab_size);
  try {
    validate(config);
  } catch (const Error& error) {
    fail(fmt::format("{}: {}", file, error.what()), ErrorKind::usage);
  }
  return config;
}

}  // namespace sluice
