#include "models/decoder/config_json/config_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/decoder/names.h"

namespace sluice {
namespace {

/// Returns the object "rope_parameters"; version 4 takes "rope_theta" and the rest as
/// "rope_scaling".
nlohmann::ordered_json rope_of(const RotaryConfig& rotary) {
  nlohmann::ordered_json rope{{"rope_theta", rotary.base}, {"rope_type", "default"}};
  if (rotary.divisor != 1) {
    rope["rope_type"] = "linear";
    rope["factor"] = rotary.divisor;
  }
  if (rotary.llama3) {
    rope["rope_type"] = "llama3";
    rope["factor"] = rotary.llama3->factor;
    rope["low_freq_factor"] = rotary.llama3->low_frequency;
    rope["high_freq_factor"] = rotary.llama3->high_frequency;
    rope["original_max_position_embeddings"] = rotary.llama3->original_context;
  }
  return rope;
}

/// Returns the name that transformers has for an activation.
std::string_view name_of(MlpActivation activation) {
  switch (activation) {
    case MlpActivation::gelu:
      return "gelu_new";
    case MlpActivation::exact_gelu:
      return "gelu";
    case MlpActivation::relu:
      return "relu";
    case MlpActivation::swiglu:
      return "silu";
  }
  return "";
}

nlohmann::ordered_json gpt_json(const DecoderConfig& config) {
  const bool gptj = config.family == Family::gptj;
  nlohmann::ordered_json json{
      {"architectures", {gptj ? "GPTJForCausalLM" : "GPT2LMHeadModel"}},
      {"model_type", name_of(config.family)},
      {"activation_function", name_of(config.activation)},
      {"n_layer", config.n_layer},
      {"n_head", config.n_head},
      {"n_embd", config.n_embd},
      {"n_inner", nullptr},
      {"n_positions", config.n_positions},
      {"n_ctx", config.n_positions},
      {"vocab_size", config.vocab_size},
      {"layer_norm_epsilon", config.layer_norm_epsilon},
      {"tie_word_embeddings", config.tied},
      {"attn_pdrop", config.dropout.attention},
      {"embd_pdrop", config.dropout.embedding},
      {"resid_pdrop", config.dropout.residual},
  };
  if (config.n_inner != 0) json["n_inner"] = config.n_inner;
  // Transformers does not know this key; it makes missing biases zeros.
  if (!config.norm_bias) json["bias"] = false;
  if (gptj)
    json["rotary_dim"] = config.rotary->width;
  else
    json["scale_attn_weights"] = true;
  return json;
}

nlohmann::ordered_json llama_json(const DecoderConfig& config) {
  nlohmann::ordered_json json{
      {"architectures", {fmt::format("{}ForCausalLM", names_of(config.family).title)}},
      {"model_type", name_of(config.family)},
      {"hidden_act", "silu"},
      {"num_hidden_layers", config.n_layer},
      {"num_attention_heads", config.n_head},
      {"num_key_value_heads", config.kv_heads()},
      {"head_dim", config.width_of_head()},
      {"hidden_size", config.n_embd},
      {"intermediate_size", config.inner()},
      {"max_position_embeddings", config.n_positions},
      {"vocab_size", config.vocab_size},
      {"rms_norm_eps", config.layer_norm_epsilon},
      {"attention_dropout", config.dropout.attention},
      {"tie_word_embeddings", config.tied},
      {"rope_theta", config.rotary->base},
      {"rope_scaling", nullptr},
  };
  nlohmann::ordered_json rope = rope_of(*config.rotary);
  json["rope_parameters"] = rope;
  if (rope["rope_type"] != "default") {
    rope.erase("rope_theta");
    json["rope_scaling"] = rope;
  }
  if (config.padding_id) json["pad_token_id"] = *config.padding_id;
  if (config.family == Family::mistral && config.window == 0) json["sliding_window"] = nullptr;
  if (config.family == Family::qwen2 || config.family == Family::qwen3)
    json["use_sliding_window"] = false;
  if (config.family == Family::qwen3) json["attention_bias"] = false;
  return json;
}

nlohmann::ordered_json neox_json(const DecoderConfig& config) {
  const auto head = static_cast<double>(config.width_of_head());
  double part = static_cast<double>(config.rotary_width()) / head;
  // A reader takes the whole part of part * head.
  if (static_cast<std::int64_t>(part * head) != config.rotary_width())
    part = std::nextafter(part, 1.0);
  nlohmann::ordered_json rope = rope_of(*config.rotary);
  rope["partial_rotary_factor"] = part;
  return {{"architectures", {"GPTNeoXForCausalLM"}},
          {"model_type", name_of(config.family)},
          {"hidden_act", name_of(config.activation)},
          {"num_hidden_layers", config.n_layer},
          {"num_attention_heads", config.n_head},
          {"hidden_size", config.n_embd},
          {"intermediate_size", config.inner()},
          {"max_position_embeddings", config.n_positions},
          {"vocab_size", config.vocab_size},
          {"layer_norm_eps", config.layer_norm_epsilon},
          {"attention_dropout", config.dropout.attention},
          {"hidden_dropout", config.dropout.residual},
          {"attention_bias", true},
          {"use_parallel_residual", config.block == BlockKind::parallel},
          {"tie_word_embeddings", config.tied},
          {"rotary_pct", part},
          {"rotary_emb_base", config.rotary->base},
          {"rope_parameters", rope}};
}

/// The keys that say what the family's model is.
nlohmann::ordered_json family_json(const DecoderConfig& config) {
  switch (config.family) {
    case Family::gpt2:
    case Family::gptj:
      return gpt_json(config);
    case Family::gpt_neox:
      return neox_json(config);
    case Family::llama:
    case Family::mistral:
    case Family::qwen2:
    case Family::qwen3:
      return llama_json(config);
  }
  fail("a family of models without a config.json");
}

/// One id, or a list of several.
nlohmann::ordered_json ids_of(const std::vector<std::int64_t>& ids) {
  if (ids.size() == 1) return ids.front();
  return ids;
}

}  // namespace

std::string config_json(const DecoderConfig& config, std::string_view torch_dtype,
                        std::int64_t end_of_text) {
  nlohmann::ordered_json json = family_json(config);
  json["torch_dtype"] = torch_dtype;
  // Hugging Face fills missing ids with those of the family's first model, which a small vocabulary
  // does not have.
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  if (end_of_text >= 0) {
    json["bos_token_id"] = config.begin_id.value_or(end_of_text);
    json["eos_token_id"] = end_of_text;
    // A chat model may end a text by one of several tokens.
    if (std::ranges::find(config.end_ids, end_of_text) != config.end_ids.end())
      json["eos_token_id"] = ids_of(config.end_ids);
  } else {
    if (config.begin_id) json["bos_token_id"] = *config.begin_id;
    if (!config.end_ids.empty()) json["eos_token_id"] = ids_of(config.end_ids);
  }
  if (config.unused_keys.empty()) return json.dump(2) + "\n";
  const auto unused = nlohmann::ordered_json::parse(config.unused_keys);
  for (const auto& [key, value] : unused.items())
    json[key] = value;
  return json.dump(2) + "\n";
}

}  // namespace sluice
