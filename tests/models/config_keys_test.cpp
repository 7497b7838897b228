#include "models/decoder/config_json/config_keys.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/decoder/config_json/config_file.h"
#include "models/decoder/config_json/config_writer.h"
#include "models/decoder/config_json/generation_config.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/temp_dir.h"

// Every key of a config.json has the effect that it has in transformers, or is refused, or is kept.

namespace sluice::test::config_keys_test {
namespace {

using Json = nlohmann::json;

Json data(const char* name) {
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/tests/interop/" + name);
  REQUIRE(file);
  return Json::parse(file);
}

/// A config.json of a family with the keys that it must have.
Json config_of_family(const std::string& family, const Json& changes = Json::object()) {
  Json json = family.starts_with("gpt") && family != "gpt_neox"
                  ? Json{{"n_layer", 2},
                         {"n_head", 2},
                         {"n_embd", 16},
                         {"vocab_size", 61},
                         {"n_positions", 32}}
                  : Json{{"num_hidden_layers", 2},   {"num_attention_heads", 2},
                         {"hidden_size", 16},        {"intermediate_size", 40},
                         {"vocab_size", 61},         {"max_position_embeddings", 32},
                         {"num_key_value_heads", 2}, {"head_dim", 8}};
  if (family == "gptj") json["rotary_dim"] = 4;
  if (family == "gpt_neox") json["rotary_pct"] = 0.5;
  json["model_type"] = family;
  json.update(changes);
  return json;
}

DecoderConfig parsed(const Json& json) {
  return parse_config(json, "config.json");
}

Json exported(const DecoderConfig& config) {
  return Json::parse(config_json(config, "float32", -1));
}

/// The configuration without the keys that are only kept.
DecoderConfig computed(DecoderConfig config) {
  config.unused_keys.clear();
  return config;
}

TEST_CASE("each key that transformers knows is used, harmless or refused", "[config_keys]") {
  const Json families = data("config_keys.json");
  int fixed = 0, harmless = 0;
  for (const auto& [name, keys] : families.items()) {
    if (name == "transformers") continue;
    const DecoderConfig plain = parsed(config_of_family(name));
    for (const auto& [key, usual] : keys.items()) {
      INFO(name << ": " << key);
      const KeyUse use = use_of(key, plain.family);
      CHECK(use != KeyUse::unknown);
      if (use == KeyUse::used) continue;
      const Json value = Json::array({"something", "else"});
      const Json json = config_of_family(name, {{key, value}});
      if (use == KeyUse::fixed) {
        CHECK_THAT(error_message([&] { parsed(json); }),
                   Contains("config.json: \"" + key + "\" is [\"something\",\"else\"]; only"));
        ++fixed;
      } else {
        CHECK(computed(parsed(json)) == computed(plain));
        CHECK(notes_on(parsed(json)).empty());
        ++harmless;
      }
    }
  }
  CHECK(fixed > 150);
  CHECK(harmless > 400);
}

TEST_CASE("configurations are understood as transformers does", "[config_keys][config_cases]") {
  int read = 0, refused = 0;
  const Json cases = data("config_cases.json");
  for (const Json& one : cases) {
    INFO(one.at("config").dump());
    if (one.contains("refused")) {
      CHECK_THAT(error_message([&] { parsed(one.at("config")); }),
                 Contains("\"" + one.at("refused").get<std::string>() + "\""));
      ++refused;
      continue;
    }
    const DecoderConfig config = parsed(one.at("config"));
    const Json& is = one.at("is");
    CHECK(config.n_layer == is.at("layers"));
    CHECK(config.n_head == is.at("heads"));
    CHECK(config.n_embd == is.at("width"));
    CHECK(config.n_positions == is.at("context"));
    CHECK(config.tied == is.at("tied"));
    CHECK(config.window == is.at("window"));
    CHECK((config.padding_id ? Json(*config.padding_id) : Json()) == is.at("padding"));
    const Json dropout{config.dropout.embedding, config.dropout.attention, config.dropout.residual};
    CHECK(dropout == is.at("dropout"));
    CHECK(parsed(exported(config)) == config);
    ++read;
    if (!is.contains("frequencies")) continue;
    const auto angles = rotary_angles(config);
    REQUIRE(angles);
    REQUIRE(static_cast<std::size_t>(angles->width) == 2 * is.at("frequencies").size());
    for (std::size_t i = 0; i < is.at("frequencies").size(); ++i) {
      // A turn is 2^64; the frequency 1 of the first pair is 1 / 2 pi of it.
      const double ours = std::ldexp(static_cast<double>(angles->turns[i]), -64) * 2 * M_PI;
      CHECK(ours == Approx(is.at("frequencies")[i].get<double>()).epsilon(2e-6));
    }
  }
  CHECK(read > 100);
  CHECK(refused > 20);
}

TEST_CASE("rope_scaling wins over rope_parameters", "[config_keys]") {
  const Json linear{{"rope_type", "linear"}, {"factor", 4}};
  const Json base{{"rope_theta", 500.0}, {"rope_type", "default"}};
  const auto rotary = [](const Json& changes) {
    return *parsed(config_of_family("llama", changes)).rotary;
  };
  CHECK(rotary({{"rope_scaling", linear}, {"rope_parameters", base}}) ==
        RotaryConfig{.divisor = 4});
  CHECK(rotary({{"rope_scaling", linear}, {"rope_theta", 700}}) ==
        RotaryConfig{.base = 700, .divisor = 4});
  CHECK(rotary({{"rope_scaling", Json::object()}, {"rope_parameters", base}}) ==
        RotaryConfig{.base = 500});
  CHECK(rotary({{"rope_scaling", nullptr}, {"rope_parameters", linear}}) ==
        RotaryConfig{.divisor = 4});
}

TEST_CASE("Llama 3.1's scaling takes the model's context for the one of pretraining",
          "[config_keys]") {
  const Json scaling{{"rope_type", "llama3"},
                     {"factor", 8},
                     {"low_freq_factor", 1},
                     {"high_freq_factor", 4},
                     {"rope_theta", 1e4}};
  const auto original = [&](const Json& changes) {
    Json json = config_of_family("llama", {{"rope_parameters", scaling}});
    json.merge_patch(changes);
    return parsed(json).rotary->llama3->original_context;
  };
  CHECK(original(Json::object()) == 32);
  CHECK(original({{"rope_parameters", {{"original_max_position_embeddings", 8}}}}) == 8);
  CHECK(original({{"rope_parameters", {{"original_max_position_embeddings", 8}}},
                  {"original_max_position_embeddings", 16}}) == 16);
  for (const char* const key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    Json less = scaling;
    less.erase(key);
    CHECK_THAT(error_message([&] {
                 parsed(config_of_family("llama", {{"rope_parameters", less}}));
               }),
               Contains(std::string("\"") + key + "\" is missing"));
  }
}

TEST_CASE("a window limits sequences, not the model", "[config_keys]") {
  const DecoderConfig mistral = parsed(config_of_family("mistral", {{"sliding_window", 16}}));
  CHECK(mistral.n_positions == 32);
  CHECK(mistral.longest_sequence() == 16);
  CHECK(exported(mistral).at("sliding_window") == 16);
  CHECK(exported(mistral).at("max_position_embeddings") == 32);
  require_length(mistral, 16, "--seq-len 16");
  CHECK(error_message([&] { require_length(mistral, 17, "--seq-len 17"); }) ==
        "--seq-len 17 is longer than the model's sliding window of 16, beyond which nothing is "
        "computed yet; give 16 at most");
  CHECK(error_message([&] { require_length(mistral, 33, "--seq-len 33"); }) ==
        "--seq-len 33 is longer than the model's context of 32; give 16 at most");
  CHECK_THAT(notes_on(mistral).at(0), Contains("16 of the model's 32 positions"));
  CHECK(parsed(config_of_family("mistral")).window == 4096);
  // With a list of layers transformers reads a Mistral as a Ministral.
  const DecoderConfig full = parsed(config_of_family(
      "mistral", {{"sliding_window", 16}, {"layer_types", {"full_attention", "full_attention"}}}));
  CHECK(full.window == 0);
  CHECK(exported(full).at("sliding_window") == 16);
  CHECK(parsed(exported(full)) == full);
  CHECK(notes_on(parsed(config_of_family("mistral"))).empty());
  // Qwen has windows from a layer on, 28 if nothing says more, or in the layers of a list.
  const auto window = [](const Json& changes) {
    Json json = config_of_family("qwen2", {{"sliding_window", 8}, {"use_sliding_window", true}});
    json.update(changes);
    const DecoderConfig config = parsed(json);
    CHECK(parsed(exported(config)) == config);
    for (const auto& [key, value] : changes.items())
      CHECK(exported(config).at(key) == value);
    return config.window;
  };
  CHECK(window(Json::object()) == 0);
  CHECK(window({{"max_window_layers", 1}}) == 8);
  CHECK(window({{"max_window_layers", 2}}) == 0);
  CHECK(window({{"max_window_layers", 0}, {"use_sliding_window", false}}) == 0);
  CHECK(window({{"max_window_layers", 0}, {"sliding_window", nullptr}}) == 0);
  CHECK(window({{"layer_types", {"full_attention", "sliding_attention"}}}) == 8);
  CHECK(window({{"max_window_layers", 0}, {"layer_types", {"full_attention", "full_attention"}}}) ==
        0);
}

TEST_CASE("dropout is read with each family's default and written again", "[config_keys]") {
  const auto dropout = [](const char* family, const Json& changes) {
    const DecoderConfig config = parsed(config_of_family(family, changes));
    CHECK(parsed(exported(config)).dropout == config.dropout);
    return config.dropout;
  };
  CHECK(dropout("gpt2", Json::object()) == DropoutConfig{0.1, 0.1, 0.1});
  CHECK(dropout("gpt2", {{"attn_pdrop", 0.2}, {"resid_pdrop", 0.3}, {"embd_pdrop", 0}}) ==
        DropoutConfig{0, 0.2, 0.3});
  CHECK(dropout("gptj", {{"attn_pdrop", 0.2}}) == DropoutConfig{0, 0.2, 0});
  CHECK(dropout("gpt_neox", {{"hidden_dropout", 0.2}, {"attention_dropout", 0.4}}) ==
        DropoutConfig{0.2, 0.4, 0.2});
  CHECK(dropout("llama", {{"attention_dropout", 0.4}}) == DropoutConfig{0, 0.4, 0});
  CHECK_THAT(error_message([&] {
               dropout("llama", {{"attention_dropout", 1}});
             }),
             Contains("\"attention_dropout\" is 1; a probability of dropout is from 0"));
}

TEST_CASE("what is not used is kept, and what nobody knows is noted", "[config_keys]") {
  const DecoderConfig config = parsed(config_of_family("llama", {{"initializer_range", 0.5},
                                                                 {"our_key", {1, 2}},
                                                                 {"another", true},
                                                                 {"c", 1},
                                                                 {"architectures", {"Other"}},
                                                                 {"d", 2},
                                                                 {"n_ctx", 7}}));
  const Json written = exported(config);
  CHECK(written.at("initializer_range") == 0.5);
  CHECK(written.at("our_key") == Json{1, 2});
  CHECK(written.at("architectures") == Json{"LlamaForCausalLM"});
  CHECK_FALSE(written.contains("n_ctx"));
  CHECK(notes_on(config) == std::vector<std::string>{"config.json has \"another\", \"c\", \"d\" "
                                                     "and 1 more, which no Llama has; ignored"});
  CHECK(notes_on(parsed(config_of_family("gpt2"))).empty());
}

TEST_CASE("keys that have other names, or none, are refused in one sentence", "[config_keys]") {
  struct Row {
    const char* family;
    Json changes;
    const char* says;
  };
  const std::vector<Row> rows{
      {"llama", {{"is_causal", false}}, "\"is_causal\" is false; only true is supported"},
      {"gpt2", {{"is_causal", nullptr}}, "\"is_causal\" is null; only true is supported"},
      {"gpt_neox", {{"head_dim", 4}}, "\"head_dim\" is 4; hidden_size / num_attention_heads is 8"},
      {"gpt2", {{"hidden_size", 32}}, "\"hidden_size\" is 32; the key of this family that it"},
      {"llama", {{"sliding_window", 8}}, "\"sliding_window\" is 8; only null is supported"},
      {"llama", {{"layer_types", {"full_attention", "sliding_attention"}}}, "\"layer_types\" is"},
      {"qwen2",
       {{"layer_types", {"full_attention", "sliding_attention"}}},
       "no key gives the width of a window"},
      {"qwen2", {{"layer_types", {"full_attention"}}}, "it must have 2 times"},
      {"llama", {{"pad_token_id", 61}}, "\"pad_token_id\" is 61; it must be a token of the 61"},
      {"llama", {{"rope_scaling", {{"full_attention", Json::object()}}}}, "no such key of rotary"},
      {"llama", {{"model_type", "gemma3"}}, "\"model_type\" is \"gemma3\"; no supported family"},
      {"llama", {{"model_type", nullptr}}, "\"model_type\" is missing"}};
  for (const auto& [family, changes, says] : rows) {
    const std::string message =
        error_message([&, &f = family, &c = changes] { parsed(config_of_family(f, c)); });
    CHECK_THAT(message, Contains(says));
    CHECK_THAT(message, StartsWith("config.json: "));
    CHECK(message.size() <= 300);
  }
  // These have an effect nowhere.
  for (const char* const family : {"mistral", "qwen2"})
    CHECK(notes_on(parsed(config_of_family(family, {{"attention_bias", true}}))).size() == 0);
  CHECK(parsed(config_of_family("llama", {{"hidden_act", "swish"}})).activation ==
        MlpActivation::swiglu);
  CHECK(parsed(config_of_family("llama", {{"pad_token_id", -1}})).padding_id == 60);
}

TEST_CASE("generation_config.json gives what its makers mean", "[config_keys]") {
  const TempDir dir;
  const auto read = [&](const Json& json) {
    std::ofstream(dir.path() / generation_config_file) << json;
    return read_generation_config(dir.path(), 61);
  };
  CHECK(read_generation_config(dir.path(), 61).empty());
  CHECK(read({{"eos_token_id", 7}, {"bos_token_id", 1}}).end_ids == std::vector<std::int64_t>{7});
  CHECK(read({{"eos_token_id", 7}}).empty());
  CHECK(read({{"eos_token_id", {3, 5, 99}}}).end_ids == std::vector<std::int64_t>{3, 5});
  const GenerationDefaults sampled =
      read({{"do_sample", true}, {"temperature", 0.6}, {"top_p", 0.9}, {"max_new_tokens", 12}});
  CHECK(sampled.temperature == 0.6);
  CHECK(sampled.top_p == 0.9);
  CHECK(sampled.top_k == 50);  // transformers' default
  CHECK(sampled.max_tokens == 12);
  CHECK(read({{"do_sample", true}}).temperature == 1);
  CHECK(read({{"do_sample", false}, {"temperature", 0.6}}).temperature == 0);
  CHECK(read({{"repetition_penalty", 1.1}, {"num_beams", 1}, {"min_p", 0.1}}).unused ==
        std::vector<std::string>{"repetition_penalty", "min_p"});
  CHECK_THAT(error_message([&] {
               read({{"temperature", "hot"}});
             }),
             Contains("generation_config.json: \"temperature\" is \"hot\""));
}

}  // namespace
}  // namespace sluice::test::config_keys_test
