#include <nlohmann/json.hpp>

#include "models/decoder/config.h"
#include "models/decoder/config_json/config_writer.h"
#include "tests/fuzz/samples.h"

namespace sluice::fuzz {
namespace {

using Json = nlohmann::json;

/// config.json of a small model, changed by a patch (RFC 7396).
std::string config(const Json& patch) {
  Json json = Json::parse(
      config_json({.n_layer = 2, .n_head = 2, .n_embd = 16, .vocab_size = 64, .n_positions = 16},
                  "float32", -1));
  json.merge_patch(patch);
  return json.dump();
}

/// The same of a small Llama.
std::string llama(const Json& patch, const Json& further = Json::object()) {
  Json json = {{"model_type", "llama"},
               {"hidden_size", 24},
               {"intermediate_size", 40},
               {"num_hidden_layers", 2},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"vocab_size", 61},
               {"max_position_embeddings", 32},
               {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}};
  json.merge_patch(patch);
  json.merge_patch(further);
  return json.dump();
}
/// The same of a small GPT-NeoX.
std::string neox(const Json& patch) {
  return llama({{"model_type", "gpt_neox"}, {"rope_parameters", nullptr}, {"hidden_act", "gelu"}},
               patch);
}
std::string rope(const Json& patch) {
  return llama({{"rope_parameters", patch}});
}

Samples llama_samples() {
  return {
      {"accepted-llama", llama(Json::object()), ""},
      {"accepted-llama-3",
       rope({{"rope_type", "llama3"},
             {"factor", 32},
             {"low_freq_factor", 1},
             {"high_freq_factor", 4}}),
       ""},
      {"accepted-llama-4.0", llama({{"rope_parameters", nullptr}, {"rope_theta", 5e5}}), ""},
      {"accepted-qwen2", llama({{"model_type", "qwen2"}, {"head_dim", 10}}), ""},
      {"accepted-mistral", llama({{"model_type", "mistral"}, {"sliding_window", 16}}), ""},
      {"kv-heads-do-not-divide", llama({{"num_key_value_heads", 3}}), "not divisible"},
      {"more-kv-heads", llama({{"num_key_value_heads", 8}}), "n_kv_head is 8"},
      {"no-kv-heads", llama({{"num_key_value_heads", 0}}), "\"num_key_value_heads\" is 0"},
      {"no-heads", llama({{"num_attention_heads", 0}}), "n_head is 0"},
      {"odd-rotary-width", llama({{"head_dim", 7}}), "must be even"},
      {"wide-rotary-width", llama({{"head_dim", 1 << 20}}), "at most 256"},
      {"no-inner-width", llama({{"intermediate_size", nullptr}}), "is missing"},
      {"other-activation-of-llama", llama({{"hidden_act", "gelu"}}), "only \"silu\""},
      {"attention-biases", llama({{"attention_bias", true}}), "only false"},
      {"unknown-scaling", rope({{"rope_type", "yarn"}}), "\"llama3\" are supported"},
      {"scaling-as-text", llama({{"rope_parameters", "llama3"}}), "must be an object"},
      {"base-below-one", rope({{"rope_theta", 0}}), "from 1 to"},
      {"no-factor", rope({{"rope_type", "llama3"}, {"low_freq_factor", 9}}),
       "\"factor\" is missing"},
      {"crossed-frequencies",
       rope({{"rope_type", "llama3"},
             {"factor", 2},
             {"low_freq_factor", 9},
             {"high_freq_factor", 4}}),
       "it must be above low_freq_factor"},
      {"half-rotary", rope({{"partial_rotary_factor", 0.5}}), "only 1.0"},
      {"negative-original-context",
       rope({{"rope_type", "llama3"},
             {"factor", 2},
             {"low_freq_factor", 1},
             {"high_freq_factor", 4},
             {"original_max_position_embeddings", -1}}),
       "from 1 to"},
      {"no-window", llama({{"model_type", "mistral"}, {"sliding_window", -1}}), "from 1 to"},
      {"accepted-qwen3", llama({{"model_type", "qwen3"}}), ""},
      {"biases-of-qwen3", llama({{"model_type", "qwen3"}, {"attention_bias", true}}), "only false"},
      {"accepted-gptj", config({{"model_type", "gptj"}, {"rotary_dim", 4}}), ""},
      {"odd-rotary-part", config({{"model_type", "gptj"}, {"rotary_dim", 5}}), "must be even"},
      {"wide-rotary-part", config({{"model_type", "gptj"}, {"rotary_dim", 64}}), "at most 8"},
      {"null-rotary-part", config({{"model_type", "gptj"}, {"rotary_dim", nullptr}}), "at most 8"},
      {"accepted-gpt-neox", neox({{"rotary_pct", 1}}), ""},
      {"accepted-sequential-gpt-neox", neox({{"rotary_pct", 1}, {"use_parallel_residual", false}}),
       ""},
      {"no-rotary-part", neox({{"rotary_pct", 0}}), "above 0"},
      {"rotary-part-of-no-column", neox({{"rotary_pct", 0.01}}), "are none"},
      {"scaled-gpt-neox", neox({{"rope_scaling", {{"type", "linear"}}}}), "\"factor\" is missing"},
      {"accepted-tanh-gelu-of-gpt-neox", neox({{"rotary_pct", 1}, {"hidden_act", "gelu_fast"}}),
       ""},
      {"other-activation-of-gpt-neox", neox({{"hidden_act", "silu"}}), "only \"gelu_new\""},
  };
}

}  // namespace

Samples json_samples() {
  return {
      {"accepted", R"({"a":[1,-2,0.5,1e300,true,null,{}],"b":"\u00e9\ud83d\ude00\n"})", ""},
      {"accepted-128-levels", std::string(128, '[') + std::string(128, ']'), ""},
      {"accepted-64-bits", "[18446744073709551615,-9223372036854775808]", ""},
      {"accepted-beyond-64-bits", "18446744073709551616", ""},
      {"empty", "", "it is empty"},
      {"cut", R"({"a":1)", "unexpected end of input"},
      {"two-values", "{}{}", "not valid JSON"},
      {"comma-at-the-end", R"({"a":1,})", "not valid JSON"},
      {"comment", "{/**/}", "not valid JSON"},
      {"nan", "[NaN]", "not valid JSON"},
      {"leading-zero", "[01]", "not valid JSON"},
      {"number-overflow", "[1e400]", "number overflow"},
      {"byte-order-mark", "\xEF\xBB\xBF{}", "byte order mark"},
      {"nul", std::string("{}\0", 3), "NUL at byte 2"},
      {"escaped-nul", R"(["\u0000"])", "escaped NUL"},
      {"escaped-nul-in-key", R"({"a\u0000":1})", "escaped NUL"},
      {"not-utf8", "[\"\xFF\"]", "ill-formed UTF-8"},
      {"overlong-utf8", "[\"\xC0\xAF\"]", "ill-formed UTF-8"},
      {"lone-surrogate", R"(["\ud800"])", "surrogate"},
      {"key-twice", R"({"a":1,"\u0061":2})", "occurs twice"},
      {"deep-key-twice", R"([{"x":[{"k":{},"k":[]}]}])", "occurs twice"},
      {"129-levels", std::string(129, '[') + std::string(129, ']'), "128 levels"},
      {"deep-nesting", std::string(100'000, '['), "128 levels"},
      {"long-number", "[" + std::string(100'000, '9') + "]", "number overflow"},
  };
}

Samples config_samples() {
  Samples samples = {
      {"accepted", config({{"n_layer", 2}}), ""},
      {"accepted-other-width", config({{"n_inner", 40}}), ""},
      {"accepted-without-epsilon", config({{"layer_norm_epsilon", nullptr}}), ""},
      {"no-type", config({{"model_type", nullptr}}), "\"model_type\" is missing"},
      {"not-an-object", "[1]", "must be a JSON object"},
      {"key-twice", R"({"n_layer":1,"n_layer":2})", "occurs twice"},
      {"heads-do-not-divide", config({{"n_head", 3}}), "not divisible"},
      {"too-many-parameters",
       config({{"n_embd", 1 << 24}, {"n_inner", 1 << 24}, {"n_layer", 1 << 14}}), "parameters"},
      {"null-layers", config({{"n_layer", nullptr}}), "n_layer"},
      {"negative-inner", config({{"n_inner", -4}}), "\"n_inner\" is -4"},
      {"zero-inner", config({{"n_inner", 0}}), "\"n_inner\" is 0"},
      {"other-activation", config({{"activation_function", "silu"}}), "only \"gelu_new\""},
      {"long-activation", config({{"activation_function", std::string(10'000, 'x')}}), "..."},
      {"other-model", config({{"model_type", "bloom"}}), "no supported family"},
      {"untied", config({{"tie_word_embeddings", false}}), "only true"},
      {"zero-epsilon", config({{"layer_norm_epsilon", 0}}), "between 0 and 1"},
      {"epsilon-one", config({{"layer_norm_epsilon", 1}}), "between 0 and 1"},
      {"epsilon-as-text", config({{"layer_norm_epsilon", "1e-5"}}), "between 0 and 1"},
      {"epsilon-as-list", config({{"layer_norm_epsilon", Json(std::vector<int>(10'000))}}), "..."},
  };
  for (Sample& sample : llama_samples())
    samples.push_back(std::move(sample));
  struct Value {
    const char* name;
    Json value;
  };
  const std::vector<Value> values = {{"negative", -1},
                                     {"zero", 0},
                                     {"fraction", 2.5},
                                     {"2-to-31", std::int64_t{1} << 31},
                                     {"2-to-63", std::uint64_t{1} << 63},
                                     {"least-64-bits", INT64_MIN},
                                     {"1e30", 1e30},
                                     {"text", "12"},
                                     {"true", true},
                                     {"list", Json(std::vector<int>(10'000))}};
  for (const char* key : {"n_layer", "n_head", "n_embd", "vocab_size", "n_positions"}) {
    samples.push_back({std::string(key) + "-missing", config({{key, nullptr}}), key});
    for (const auto& [name, value] : values)
      samples.push_back({std::string(key) + "-" + name, config({{key, value}}), key});
  }
  return samples;
}

}  // namespace sluice::fuzz
