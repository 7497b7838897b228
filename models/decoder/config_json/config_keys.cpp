#include "models/decoder/config_json/config_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

// Which keys there are is a fact about transformers 5: tests/interop/config_keys.py lists those of
// its configuration classes and those that its code reads (tests/interop/config_keys.json), and a
// test holds these tables against that list. tests/interop/config_cases.py compares what they do.

namespace sluice {
namespace {

using Json = nlohmann::json;

// Keys that the reader reads: of all families, of GPT-2 and GPT-J, of the others, and of those that
// are made like Llama.
constexpr std::string_view used_by_all =
    "model_type vocab_size bos_token_id eos_token_id tie_word_embeddings hidden_size "
    "num_hidden_layers num_attention_heads max_position_embeddings quantization_config "
    "compression_config ";
constexpr std::string_view used_by_gpt =
    "n_layer n_head n_embd n_positions n_inner activation_function layer_norm_epsilon attn_pdrop "
    "embd_pdrop resid_pdrop ";
constexpr std::string_view used_by_newer =
    "intermediate_size hidden_act attention_dropout rope_parameters rope_scaling "
    "original_max_position_embeddings head_dim ";
constexpr std::string_view used_by_llama =
    "num_key_value_heads rms_norm_eps rope_theta partial_rotary_factor pad_token_id ";

std::string_view used_alone_by(Family family) {
  switch (family) {
    case Family::gpt2:
      return "bias ";
    case Family::gptj:
      return "rotary_dim ";
    case Family::gpt_neox:
      return "layer_norm_eps hidden_dropout use_parallel_residual rotary_pct rotary_emb_base ";
    case Family::mistral:
      return "sliding_window layer_types ";
    case Family::qwen2:
    case Family::qwen3:
      return "sliding_window use_sliding_window max_window_layers layer_types ";
    case Family::llama:
      break;
  }
  return "";
}

/// A key that decides what is computed, and its values that are supported, as a JSON list.
struct Fixed {
  std::string_view key, values;
};

constexpr std::string_view none = "[null]", no = "[false, null]";
constexpr Fixed fixed_in_all[] = {{"is_causal", "[true]"},
                                  {"is_encoder_decoder", no},
                                  {"add_cross_attention", no},
                                  {"cross_attention_hidden_size", none},
                                  {"attention_chunk_size", none},
                                  {"per_layer_config", "[null, {}]"},
                                  {"pruned_heads", "[null, {}]"},
                                  {"transformers_weights", none},
                                  {"kv_sharing_modes", none},
                                  {"mlp_layer_types", none},
                                  {"num_mtp_layers", "[null, 0]"},
                                  {"mtp_layer_types", none},
                                  {"mtp_mlp_layer_types", none},
                                  {"mtp_per_layer_config", none},
                                  {"first_k_dense_replace", none},
                                  {"logits_mup_width_multiplier", none},
                                  {"unpadded_vocab_size", none},
                                  {"vision_config", none},
                                  {"weight_mapping", none},
                                  {"fusion_config", none},
                                  {"extra_files", none},
                                  {"is_quantized", no},
                                  {"number_of_conv_states", none},
                                  {"chain_hidden_post_norm", none},
                                  {"sub_config_name", none},
                                  {"distributed_config", none},
                                  {"mtp_hidden_states_first", none}};
constexpr Fixed fixed_in_gpt2[] = {{"scale_attn_weights", "[true]"},
                                   {"scale_attn_by_inverse_layer_idx", "[false]"},
                                   {"sliding_window", none}};
constexpr Fixed fixed_in_gptj[] = {{"sliding_window", none}};
constexpr Fixed fixed_in_neox[] = {{"attention_bias", "[true]"}, {"sliding_window", none}};
constexpr Fixed fixed_in_llama[] = {
    {"attention_bias", "[false]"}, {"mlp_bias", "[false]"}, {"sliding_window", none}};
constexpr Fixed fixed_in_qwen3[] = {{"attention_bias", "[false]"}};

std::span<const Fixed> fixed_in(Family family) {
  switch (family) {
    case Family::gpt2:
      return fixed_in_gpt2;
    case Family::gptj:
      return fixed_in_gptj;
    case Family::gpt_neox:
      return fixed_in_neox;
    case Family::llama:
      return fixed_in_llama;
    case Family::qwen3:
      return fixed_in_qwen3;
    case Family::mistral:
    case Family::qwen2:
      break;
  }
  return {};
}

/// What a program writes anew, or what says nothing about a copy of the model.
constexpr std::string_view written_anew =
    "architectures auto_map dtype torch_dtype transformers_version _name_or_path name_or_path "
    "_commit_hash n_ctx ";

/// Attributes of objects that transformers' code calls a config too, of loading and of caches.
constexpr std::string_view of_no_model =
    "attn_implementation _attn_implementation _attn_implementation_internal "
    "experts_implementation _experts_implementation _experts_implementation_internal "
    "capture_scalar_outputs compile_config create_compatible_mapping device_map device_mesh "
    "disable_mmap disk_offload_folder dtype_plan hf_quantizer ignore_mismatched_sizes "
    "offload_buffers pretrained_model_name_or_path quant_method sanitize_kernel_mapping "
    "sharded_metadata weights_only use_bfloat16 use_return_dict torchscript tf_legacy_loss "
    "token_classification_bias ";

/// Initial values, other heads, outputs, names of tokens, the way to compute the same.
constexpr std::string_view harmless =
    "initializer_range initializer_factor init_std use_cache output_attentions "
    "output_hidden_states return_dict tie_last_hidden_states chunk_size_feed_forward "
    "gradient_checkpointing id2label label2id num_labels problem_type finetuning_task "
    "classifier_dropout task_specific_params tokenizer_class prefix sep_token_id "
    "decoder_start_token_id summary_type summary_use_proj summary_activation "
    "summary_proj_to_labels summary_first_dropout summary_last_dropout reorder_and_upcast_attn "
    "pretraining_tp is_decoder unsloth_version unsloth_fixed ";

/// Settings of generation, which transformers 5 reads from generation_config.json alone.
constexpr std::string_view of_generation =
    "max_length max_new_tokens min_length do_sample early_stopping num_beams num_beam_groups "
    "diversity_penalty temperature top_k top_p typical_p epsilon_cutoff eta_cutoff "
    "repetition_penalty encoder_repetition_penalty length_penalty no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores "
    "return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values "
    "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens num_assistant_tokens "
    "num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind "
    "target_lookbehind ";

/// Keys of other families that the code of this one does not read. People copy them.
std::string_view foreign_to(Family family) {
  switch (family) {
    case Family::gpt2:
    case Family::gptj:
      return "attention_dropout hidden_dropout head_dim num_key_value_heads rms_norm_eps "
             "pad_token_id rope_parameters rope_scaling rope_theta partial_rotary_factor "
             "original_max_position_embeddings scale_attn_weights rotary ";
    case Family::gpt_neox:
      return "num_key_value_heads rms_norm_eps pad_token_id rope_theta partial_rotary_factor ";
    case Family::llama:
      return "hidden_dropout use_sliding_window max_window_layers ";
    case Family::mistral:
      return "hidden_dropout attention_bias mlp_bias use_sliding_window max_window_layers ";
    case Family::qwen2:
      return "hidden_dropout attention_bias mlp_bias ";
    case Family::qwen3:
      return "hidden_dropout mlp_bias ";
  }
  return "";
}

/// Returns true if a list of words, each with a space after it, has this one.
bool has_word(std::string_view words, std::string_view word) {
  for (auto at = words.find(word); at != words.npos; at = words.find(word, at + 1))
    if ((at == 0 || words[at - 1] == ' ') && words.substr(at + word.size()).starts_with(' '))
      return true;
  return false;
}

bool is_used(std::string_view key, Family family) {
  const bool gpt = family == Family::gpt2 || family == Family::gptj;
  return has_word(used_by_all, key) || has_word(used_alone_by(family), key) ||
         has_word(gpt ? used_by_gpt : used_by_newer, key) ||
         (!gpt && family != Family::gpt_neox && has_word(used_by_llama, key));
}

const Fixed* find_fixed(std::string_view key, Family family) {
  for (const std::span<const Fixed> rules :
       {std::span<const Fixed>(fixed_in_all), fixed_in(family)})
    for (const Fixed& rule : rules)
      if (rule.key == key) return &rule;
  return nullptr;
}

/// A list of layers that all see the whole text is what families without windows have anyway.
bool only_full_attention(const Json& types) {
  return types.is_null() || (types.is_array() && std::ranges::all_of(types, [](const Json& type) {
                               return type == "full_attention" || type == "attention";
                             }));
}

void require_supported(const ConfigValues& values, const std::string& key, Family family) {
  const Json& value = values.json().at(key);
  if (key == "layer_types" && !only_full_attention(value))
    values.refuse(key, "only \"full_attention\" is supported in this family");
  const Fixed* const rule = find_fixed(key, family);
  if (rule == nullptr) return;
  const Json allowed = Json::parse(rule->values);
  if (std::ranges::find(allowed, value) == allowed.end())
    values.refuse(key, fmt::format("only {} is supported", allowed.front().dump()));
}

}  // namespace

KeyUse use_of(std::string_view key, Family family) {
  if (is_used(key, family)) return KeyUse::used;
  if (key == "layer_types" || find_fixed(key, family) != nullptr) return KeyUse::fixed;
  for (const std::string_view words :
       {written_anew, of_no_model, harmless, of_generation, foreign_to(family)})
    if (has_word(words, key)) return KeyUse::harmless;
  return KeyUse::unknown;
}

std::string unused_keys(const ConfigValues& values, Family family) {
  // The windows of layers are written as they were read.
  const bool windows = is_used("sliding_window", family);
  Json kept = Json::object();
  for (const auto& [key, value] : values.json().items()) {
    const KeyUse use = use_of(key, family);
    if (use == KeyUse::fixed) require_supported(values, key, family);
    const bool keeps = use == KeyUse::harmless || use == KeyUse::unknown ||
                       (windows && has_word(used_alone_by(family), key));
    const bool usual = (key == "use_sliding_window" && value == false) ||
                       (key == "sliding_window" && value.is_null() && family == Family::mistral);
    if (keeps && !usual && !has_word(written_anew, key)) kept[key] = value;
  }
  return kept.empty() ? "" : kept.dump();
}

}  // namespace sluice
