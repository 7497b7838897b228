#include "models/decoder/config_json/config_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/io/json_document.h"
#include "engine/nearest_names.h"
#include "kernels/base/error.h"
#include "models/decoder/config_json/config_keys.h"
#include "models/decoder/config_json/config_values.h"
#include "models/decoder/config_json/rotary_keys.h"
#include "models/decoder/names.h"
#include "models/decoder/quantized_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr Family families[] = {Family::gpt2,    Family::gptj,  Family::gpt_neox, Family::llama,
                               Family::mistral, Family::qwen2, Family::qwen3};

/// Families whose config.json has GPT-2's keys; the others have Llama's.
bool is_gpt(Family family) {
  return family == Family::gpt2 || family == Family::gptj;
}

DecoderConfig read_gpt(const ConfigValues& values, Family family) {
  DecoderConfig config = config_of(family);
  config.activation = values.activation("activation_function", config.activation);
  if (family == Family::gpt2) {
    if (!values.boolean("bias", true)) leave_out_biases(config);
    values.require("tie_word_embeddings", true);
  } else {
    config.tied = values.boolean("tie_word_embeddings", false);
    if (values.json().contains("rotary_dim") && !values.has("rotary_dim"))
      values.refuse("rotary_dim", "it must be a whole number");
    config.rotary->width = values.positive_size("rotary_dim", config.rotary->width);
  }
  config.n_layer = values.size("n_layer");
  config.n_head = values.size("n_head");
  config.n_embd = values.size("n_embd");
  config.vocab_size = values.size("vocab_size");
  config.n_positions = values.size("n_positions");
  config.n_inner = values.positive_size("n_inner", 0);
  config.layer_norm_epsilon = values.fraction("layer_norm_epsilon", 1e-5);
  // Transformers has other names of these sizes, which win.
  for (const auto& [alias, size] : {std::pair{"num_hidden_layers", config.n_layer},
                                    {"num_attention_heads", config.n_head},
                                    {"hidden_size", config.n_embd},
                                    {"max_position_embeddings", config.n_positions}})
    if (values.json().contains(alias) && values.json().at(alias) != size)
      values.refuse(alias, fmt::format("the key of this family that it stands for is {}", size));
  const double usual = family == Family::gpt2 ? 0.1 : 0;
  config.dropout = {.embedding = values.probability("embd_pdrop", usual),
                    .attention = values.probability("attn_pdrop", usual),
                    .residual = values.probability("resid_pdrop", usual)};
  return config;
}

/// Returns the window of the layers that have one; 0 if none has.
std::int64_t read_window(const ConfigValues& values, Family family, std::int64_t layers) {
  if (family == Family::llama) return 0;
  // Transformers takes a missing key for its default, and null for no window.
  constexpr std::int64_t usual_window = 4096, usual_layers_without = 28;
  const std::int64_t width = values.json().contains("sliding_window")
                                 ? values.positive_size("sliding_window", 0)
                                 : usual_window;
  const bool all_slide = family == Family::mistral;
  const bool windows = width > 0 && (all_slide || values.boolean("use_sliding_window", false));
  bool slides = all_slide ||
                values.optional_size("max_window_layers").value_or(usual_layers_without) < layers;
  if (values.has("layer_types")) {
    const Json& types = values.json().at("layer_types");
    const auto is_one_of = [](const Json& type) {
      return type == "full_attention" || type == "attention" || type == "sliding_attention";
    };
    if (!types.is_array() || static_cast<std::int64_t>(types.size()) != layers ||
        !std::ranges::all_of(types, is_one_of))
      values.refuse("layer_types", fmt::format("it must have {} times \"full_attention\" or "
                                               "\"sliding_attention\"",
                                               layers));
    slides = std::ranges::find(types, Json("sliding_attention")) != types.end();
    if (slides && !windows) values.refuse("layer_types", "no key gives the width of a window");
  }
  return windows && slides ? width : 0;
}

DecoderConfig read_llama(const ConfigValues& values, Family family) {
  if (values.has("hidden_act") && values.json().at("hidden_act") != "swish")
    values.require("hidden_act", "silu");  // "swish" is another name of it
  DecoderConfig config = config_of(family);
  config.n_layer = values.size("num_hidden_layers");
  config.n_head = values.size("num_attention_heads");
  // Transformers takes a missing key for the number of one size of Mistral or Qwen, and null for
  // as many heads as q has.
  const char* const shared = "num_key_value_heads";
  if (family != Family::llama && !values.json().contains(shared)) values.size(shared);
  config.n_kv_head = values.positive_size("num_key_value_heads", 0);
  config.head_width = values.positive_size("head_dim", 0);
  config.n_embd = values.size("hidden_size");
  config.n_inner = values.positive_size("intermediate_size", 0);
  if (config.n_inner == 0) values.size("intermediate_size");  // says that it is missing
  // What is left out is made explicit, so that it is written as it was read.
  if (config.n_kv_head == 0) config.n_kv_head = config.n_head;
  if (config.head_width == 0 && family == Family::qwen3) config.head_width = 128;
  if (config.head_width == 0 && config.n_head > 0 && config.n_embd % config.n_head == 0)
    config.head_width = config.n_embd / config.n_head;
  config.vocab_size = values.size("vocab_size");
  config.n_positions = values.size("max_position_embeddings");
  config.layer_norm_epsilon = values.fraction("rms_norm_eps", 1e-6);
  config.rotary = read_rotary(values, config.n_positions, {}).rotary;
  config.tied = values.boolean("tie_word_embeddings", false);
  config.window = read_window(values, family, config.n_layer);
  config.dropout.attention = values.probability("attention_dropout", 0);
  if (values.has("pad_token_id")) {
    const Json& id = values.json().at("pad_token_id");
    const std::int64_t rows = config.vocab_size;
    if (!id.is_number_integer() || id < -rows || id >= rows)
      values.refuse("pad_token_id", fmt::format("it must be a token of the {}", rows));
    // As in PyTorch, -1 is the last row.
    config.padding_id = id.get<std::int64_t>() + (id < 0 ? rows : 0);
  }
  return config;
}

DecoderConfig read_neox(const ConfigValues& values) {
  DecoderConfig config = config_of(Family::gpt_neox);
  config.activation = values.activation("hidden_act", config.activation);
  if (!values.boolean("use_parallel_residual", true)) config.block = BlockKind::sequential;
  config.n_layer = values.size("num_hidden_layers");
  config.n_head = values.size("num_attention_heads");
  config.n_embd = values.size("hidden_size");
  config.n_inner = values.positive_size("intermediate_size", 0);
  if (config.n_inner == 0) values.size("intermediate_size");  // says that it is missing
  config.vocab_size = values.size("vocab_size");
  config.n_positions = values.size("max_position_embeddings");
  config.layer_norm_epsilon = values.fraction("layer_norm_eps", 1e-5);
  config.tied = values.boolean("tie_word_embeddings", false);
  const double hidden = values.probability("hidden_dropout", 0);
  config.dropout = {.embedding = hidden,
                    .attention = values.probability("attention_dropout", 0),
                    .residual = hidden};
  const RotaryKeys rotary = read_rotary(
      values, config.n_positions,
      {.base_key = "rotary_emb_base", .share_key = "rotary_pct", .partial = true, .share = 0.25});
  config.rotary = rotary.rotary;
  if (config.n_head < 1 || config.n_embd % config.n_head != 0) return config;  // refused later
  const std::int64_t head = config.n_embd / config.n_head;
  // Transformers takes it for the rotary width alone.
  if (values.has("head_dim") && values.json().at("head_dim") != head)
    values.refuse("head_dim", fmt::format("hidden_size / num_attention_heads is {}", head));
  config.rotary->width = static_cast<std::int64_t>(static_cast<double>(head) * rotary.share);
  if (config.rotary->width == 0)
    values.refuse(values.has("rope_scaling")      ? "rope_scaling"
                  : values.has("rope_parameters") ? "rope_parameters"
                  : values.has("rotary_pct")      ? "rotary_pct"
                                                  : "hidden_size",
                  fmt::format("{} of the columns of a head are none", rotary.share));
  return config;
}

Family read_family(const ConfigValues& values, const std::string& file) {
  if (!values.has("model_type"))
    fail(fmt::format("{}: \"model_type\" is missing; it says which family the model is of", file),
         ErrorKind::usage);
  const Json& type = values.json().at("model_type");
  for (const Family family : families)
    if (type == name_of(family)) return family;
  std::vector<std::string> names;
  for (const Family family : families)
    names.emplace_back(name_of(family));
  values.refuse("model_type",
                fmt::format("no supported family; the nearest are {} (docs/reference/"
                            "file-formats.md has all)",
                            fmt::join(nearest_names(type.is_string() ? type.get<std::string>() : "",
                                                    names, 3),
                                      ", ")));
}

}  // namespace

DecoderConfig read_config(const std::filesystem::path& file) {
  return parse_config(read_json_file(file, std::size_t{1} << 20), file.string());
}

DecoderConfig parse_config(const Json& json, const std::string& file) {
  if (!json.is_object())
    fail(fmt::format("{}: a model configuration must be a JSON object", file), ErrorKind::usage);
  const ConfigValues values(json, file);
  const Family family = read_family(values, file);
  refuse_quantized(json, file);
  const std::string unused = unused_keys(values, family);
  DecoderConfig config = is_gpt(family)               ? read_gpt(values, family)
                         : family == Family::gpt_neox ? read_neox(values)
                                                      : read_llama(values, family);
  config.unused_keys = unused;
  const std::vector<std::int64_t> begin = values.ids("bos_token_id", config.vocab_size);
  if (begin.size() == 1) config.begin_id = begin.front();
  config.end_ids = values.ids("eos_token_id", config.vocab_size);
  try {
    validate(config);
  } catch (const Error& error) {
    fail(fmt::format("{}: {}", file, error.what()), ErrorKind::usage);
  }
  return config;
}

std::vector<std::string> notes_on(const DecoderConfig& config) {
  std::vector<std::string> notes;
  if (!config.unused_keys.empty()) {
    std::vector<std::string> unknown;
    const Json keys = Json::parse(config.unused_keys);
    for (const auto& [key, value] : keys.items())
      if (use_of(key, config.family) == KeyUse::unknown) unknown.push_back(quote(key));
    const std::size_t all = unknown.size();
    if (all > 3) unknown.resize(3);
    if (all > 0)
      notes.push_back(fmt::format(
          "config.json has {}{}, which no {} has; ignored", fmt::join(unknown, ", "),
          all > 3 ? fmt::format(" and {} more", all - 3) : "", names_of(config.family).title));
  }
  if (config.longest_sequence() < config.n_positions)
    notes.push_back(
        fmt::format("attention sees {} of the model's {} positions (sliding_window): sequences "
                    "are no longer than that",
                    config.window, config.n_positions));
  return notes;
}

}  // namespace sluice
