#include <cmath>
#include <nlohmann/json.hpp>

#include "models/decoder/config_json/config_file.h"
#include "models/decoder/config_json/config_writer.h"
#include "models/decoder/decoder.h"
#include "models/decoder/weights.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"
#include "tests/support/temp_dir.h"

// config.json and weights of the families that are no GPT-2.

namespace sluice::test::family_config_test {
namespace {

/// A Llama's config.json, with some keys changed, or removed where the value is null.
Json llama_json(const Json& changes = Json::object()) {
  Json json{{"model_type", "llama"},
            {"hidden_size", 24},
            {"intermediate_size", 40},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"vocab_size", 61},
            {"max_position_embeddings", 32},
            {"rms_norm_eps", 1e-6},
            {"hidden_act", "silu"},
            {"tie_word_embeddings", false}};
  for (const auto& [key, value] : changes.items())
    if (value.is_null())
      json.erase(key);
    else
      json[key] = value;
  return json;
}

DecoderConfig parsed(const Json& changes) {
  return parse_config(llama_json(changes), "config.json");
}
std::string refusal(const Json& changes) {
  return error_message([&] { parsed(changes); });
}

Json rope(const char* type, const Json& more = Json::object()) {
  Json json{{"rope_type", type}};
  json.update(more);
  return json;
}

TEST_CASE("a family's config.json has what transformers 4 and 5 write", "[family]") {
  const DecoderConfig plain = parsed({});
  CHECK(plain.family == Family::llama);
  CHECK(plain.kv_heads() == 2);
  CHECK(plain.width_of_head() == 6);
  CHECK(plain.inner() == 40);
  CHECK(plain.norm == NormKind::rmsnorm);
  CHECK(plain.activation == MlpActivation::swiglu);
  CHECK_FALSE(plain.tied);
  CHECK_FALSE(plain.qkv_bias);
  CHECK(plain.rotary == RotaryConfig{});
  CHECK(parsed({{"num_key_value_heads", nullptr}}).kv_heads() == 4);
  Json as_many = llama_json({{"model_type", "qwen2"}});
  as_many["num_key_value_heads"] = nullptr;
  CHECK(parse_config(as_many, "config.json").kv_heads() == 4);
  CHECK(parsed({{"head_dim", 10}}).query_width() == 40);
  // The base and the scaling, in either version's place.
  const RotaryConfig far{.base = 5e5,
                         .llama3 = Llama3Scaling{.factor = 32, .original_context = 16}};
  const Json scaling{{"factor", 32},
                     {"low_freq_factor", 1},
                     {"high_freq_factor", 4},
                     {"original_max_position_embeddings", 16}};
  CHECK(parsed({{"rope_theta", 5e5}, {"rope_scaling", rope("llama3", scaling)}}).rotary == far);
  Json newer = rope("llama3", scaling);
  newer["rope_theta"] = 5e5;
  CHECK(parsed({{"rope_parameters", newer}}).rotary == far);
  CHECK(parsed({{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}).rotary ==
        RotaryConfig{.divisor = 2});
  CHECK(parsed({{"eos_token_id", {3, 5}}, {"bos_token_id", 1}}).end_ids ==
        std::vector<std::int64_t>{3, 5});
  CHECK(
      parsed({{"model_type", "mistral"}, {"max_position_embeddings", 32768}}).longest_sequence() ==
      4096);
  // Qwen2 has biases of q, k and v; a window that is not shorter than the context changes nothing.
  CHECK(parsed({{"model_type", "qwen2"}}).qkv_bias);
  CHECK(parsed({{"model_type", "qwen2"}, {"sliding_window", 8}}).longest_sequence() == 32);
  CHECK(parsed({{"model_type", "mistral"}, {"sliding_window", 32}}).longest_sequence() == 32);
  CHECK(parsed({{"model_type", "mistral"}, {"sliding_window", 20}}).longest_sequence() == 20);
}

TEST_CASE("what is written of a family is read again as the same", "[family]") {
  const Json changes = GENERATE(
      Json::object(), Json{{"head_dim", 8}, {"tie_word_embeddings", true}},
      Json{{"rope_scaling", {{"rope_type", "linear"}, {"factor", 3}}}, {"rope_theta", 1e6}},
      Json{{"rope_scaling",
            {{"rope_type", "llama3"},
             {"factor", 32},
             {"low_freq_factor", 1},
             {"high_freq_factor", 4}}}},
      Json{{"model_type", "mistral"}, {"sliding_window", 20}}, Json{{"model_type", "qwen2"}},
      Json{{"bos_token_id", 1}, {"eos_token_id", {3, 5}}}, Json{{"eos_token_id", 7}});
  const DecoderConfig config = parsed(changes);
  // The tokenizer's end of a text counts; a model that knows it among others keeps them.
  const Json both = Json::array({3, 5});
  CHECK(Json::parse(config_json(config, "float32", 3)).at("eos_token_id") ==
        (changes.value("eos_token_id", Json()) == both ? both : Json(3)));
  const Json written = Json::parse(config_json(config, "float32", -1));
  CHECK(written.at("eos_token_id") == changes.value("eos_token_id", Json()));
  CHECK(parse_config(written, "again") == config);
}

TEST_CASE("what a family's configuration asks and is not there is refused by name", "[family]") {
  struct Row {
    Json changes;
    const char* says;
  };
  const std::vector<Row> rows{
      {{{"num_key_value_heads", 3}}, "n_head 4 is not divisible by n_kv_head 3"},
      {{{"num_key_value_heads", 8}}, "n_kv_head is 8; it must be from 1 to 4"},
      {{{"num_key_value_heads", 0}}, "\"num_key_value_heads\" is 0; it must be from 1"},
      {{{"num_key_value_heads", "2"}}, "\"num_key_value_heads\" is \"2\"; it must be a whole"},
      {{{"hidden_size", 26}}, "n_embd 26 is not divisible by n_head 4"},
      {{{"head_dim", 5}}, "head_width is 5; with rotary positions it must be even"},
      {{{"head_dim", 258}}, "head_width is 258; with rotary positions it must be even and at most"},
      {{{"head_dim", -2}}, "\"head_dim\" is -2; it must be from 1"},
      {{{"intermediate_size", nullptr}}, "\"intermediate_size\" is missing"},
      {{{"hidden_size", nullptr}}, "\"hidden_size\" is missing"},
      {{{"hidden_act", "gelu"}}, "\"hidden_act\" is \"gelu\"; only \"silu\" is supported"},
      {{{"attention_bias", true}}, "\"attention_bias\" is true; only false is supported"},
      {{{"mlp_bias", true}}, "\"mlp_bias\" is true; only false is supported"},
      {{{"tie_word_embeddings", 1}}, "\"tie_word_embeddings\" is 1; it must be true or false"},
      {{{"rms_norm_eps", 0}}, "\"rms_norm_eps\" is 0; it must be a number between"},
      {{{"rope_theta", 0.5}}, "\"rope_theta\" is 0.5; it must be a number from 1"},
      {{{"rope_theta", "1e4"}}, "\"rope_theta\" is \"1e4\"; it must be a number"},
      {{{"rope_scaling", "llama3"}}, "\"rope_scaling\" is \"llama3\"; it must be an object"},
      {{{"rope_scaling", rope("yarn")}}, "rope_scaling: \"rope_type\" is \"yarn\"; only"},
      {{{"rope_parameters", rope("dynamic")}}, "rope_parameters: \"rope_type\" is \"dynamic\""},
      {{{"rope_scaling", rope("linear", {{"factor", 0.5}})}}, "\"factor\" is 0.5; it must be"},
      {{{"rope_scaling", rope("llama3", {{"factor", 8}})}}, "\"low_freq_factor\" is missing"},
      {{{"rope_scaling",
         rope("llama3", {{"factor", 8}, {"low_freq_factor", 2}, {"high_freq_factor", 1}})}},
       "\"high_freq_factor\" is 1; it must be above low_freq_factor"},
      {{{"rope_parameters", rope("default", {{"partial_rotary_factor", 0.5}})}},
       "\"partial_rotary_factor\" is 0.5; only 1.0 is supported"},
      {{{"model_type", "mistral"}, {"sliding_window", 0}}, "\"sliding_window\" is 0; it must be"},
      {{{"model_type", "qwen2"}, {"num_key_value_heads", nullptr}},
       "\"num_key_value_heads\" is missing"},
      {{{"model_type", "qwen3"}, {"head_dim", 258}, {"attention_bias", true}},
       "\"attention_bias\" is true"},
      {{{"model_type", "mixtral"}},
       "\"model_type\" is \"mixtral\"; no supported family; the nearest are mistral"}};
  for (const auto& [changes, says] : rows) {
    INFO(changes.dump());
    CHECK_THAT(refusal(changes), Contains(says) && Contains("config.json"));
  }
}

/// A config.json with GPT-J's or GPT-NeoX's keys.
Json gptj_json(const Json& changes = Json::object()) {
  Json json{{"model_type", "gptj"}, {"n_layer", 2},      {"n_head", 4},    {"n_embd", 64},
            {"vocab_size", 61},     {"n_positions", 32}, {"rotary_dim", 8}};
  json.update(changes);
  return json;
}
Json neox_json(const Json& changes = Json::object()) {
  Json json{{"model_type", "gpt_neox"},     {"num_hidden_layers", 2},
            {"num_attention_heads", 4},     {"hidden_size", 64},
            {"intermediate_size", 96},      {"vocab_size", 61},
            {"max_position_embeddings", 32}};
  json.update(changes);
  return json;
}

TEST_CASE("GPT-J, GPT-NeoX and Qwen3 are what their config.json says", "[family]") {
  const auto read = [](const Json& json) { return parse_config(json, "config.json"); };
  const DecoderConfig gptj = read(gptj_json());
  CHECK(gptj.block == BlockKind::parallel_one_norm);
  CHECK(gptj.rotary == RotaryConfig{.width = 8, .pairs = RotaryPairs::interleaved});
  CHECK((gptj.head_bias && gptj.mlp_bias && !gptj.qkv_bias && !gptj.output_bias && !gptj.tied));
  CHECK(rotary_angles(gptj)->width == 8);
  CHECK(read(gptj_json({{"n_embd", 512}, {"rotary_dim", nullptr}})
                 .patch(Json::array({{{"op", "remove"}, {"path", "/rotary_dim"}}})))
            .rotary->width == 64);
  const DecoderConfig neox = read(neox_json({{"rotary_pct", 0.5}, {"rotary_emb_base", 5e5}}));
  CHECK(neox.block == BlockKind::parallel);
  CHECK(neox.rotary == RotaryConfig{.width = 8, .base = 5e5});
  CHECK((neox.fused_heads && neox.qkv_bias && neox.output_bias && neox.mlp_bias && !neox.tied));
  CHECK(neox.activation == MlpActivation::exact_gelu);
  CHECK(read(neox_json()).rotary == RotaryConfig{.width = 4});
  CHECK(read(neox_json({{"rope_parameters", {{"partial_rotary_factor", 1}, {"rope_theta", 2e4}}}}))
            .rotary == RotaryConfig{.width = 16, .base = 2e4});
  const DecoderConfig qwen3 = parsed({{"model_type", "qwen3"}});
  CHECK((qwen3.query_key_norm && !qwen3.qkv_bias));
  CHECK(qwen3.width_of_head() == 128);  // transformers' default
  DecoderConfig changed =
      read(neox_json({{"use_parallel_residual", false}, {"hidden_act", "gelu_fast"}}));
  CHECK(changed.block == BlockKind::sequential);
  CHECK(changed.activation == MlpActivation::gelu);
  const auto again = [&](const DecoderConfig& config) {
    return read(Json::parse(config_json(config, "float32", -1)));
  };
  for (const DecoderConfig& config : {gptj, neox, qwen3, changed})
    CHECK(again(config) == config);
  // The share that is written gives the width again, although a reader rounds down.
  for (std::int64_t head = 2; head <= 256; head += 2)
    for (std::int64_t width = 2; width <= head; width += 2) {
      changed.n_embd = changed.n_head * head;
      changed.rotary->width = width;
      if (again(changed).rotary->width != width) FAIL(head << " " << width);
    }
}

TEST_CASE("what GPT-J or GPT-NeoX asks and is not there is refused by name", "[family]") {
  const std::vector<std::pair<Json, const char*>> rows{
      {gptj_json({{"rotary_dim", 7}}), "rotary width is 7; with rotary positions it must be even"},
      {gptj_json({{"rotary_dim", 32}}), "rotary width is 32; with rotary positions it must be"},
      {gptj_json({{"rotary_dim", 0}}), "\"rotary_dim\" is 0; it must be from 1"},
      {gptj_json({{"rotary_dim", nullptr}}), "\"rotary_dim\" is null; it must be a whole number"},
      {gptj_json({{"activation_function", "silu"}}), "\"gelu\" and \"relu\" are supported"},
      {gptj_json({{"n_head", 5}}), "n_embd 64 is not divisible by n_head 5"},
      {gptj_json({{"tie_word_embeddings", "no"}}), "it must be true or false"},
      {neox_json({{"hidden_act", "silu"}}), "\"gelu\" and \"relu\" are supported"},
      {neox_json({{"use_parallel_residual", 1}}), "it must be true or false"},
      {neox_json({{"attention_bias", false}}), "only true is supported"},
      {neox_json({{"rotary_pct", 0}}), "\"rotary_pct\" is 0; it must be a number above 0"},
      {neox_json({{"rotary_pct", 1.5}}), "\"rotary_pct\" is 1.5; it must be a number above 0"},
      {neox_json({{"rotary_pct", 0.2}}),
       "rotary width is 3; with rotary positions it must be even"},
      {neox_json({{"rotary_pct", 0.01}}), "0.01 of the columns of a head are none"},
      {neox_json({{"num_attention_heads", 5}}), "n_embd 64 is not divisible by n_head 5"},
      {neox_json({{"rope_parameters", {{"rope_type", "yarn"}}}}),
       "only \"default\", \"linear\" and"},
      {neox_json({{"rope_scaling", {{"type", "linear"}}}}), "\"factor\" is missing"},
      {neox_json({{"intermediate_size", nullptr}}), "\"intermediate_size\" is missing"}};
  for (const auto& [json, says] : rows) {
    INFO(json.dump());
    CHECK_THAT(error_message([&, j = json] { parse_config(j, "config.json"); }), Contains(says));
  }
}

TEST_CASE("angles of rotary positions follow the base, and Llama 3.1's rule for long waves",
          "[family]") {
  DecoderConfig config = parsed({{"head_dim", 64}});
  const auto turns = [&](int pair) {
    return std::ldexp(
               static_cast<double>(rotary_angles(config)->turns[static_cast<std::size_t>(pair)]),
               -64) *
           2 * M_PI;
  };
  CHECK(rotary_angles(config)->width == 64);
  CHECK(turns(0) == Approx(1).epsilon(1e-12));
  CHECK(turns(31) == Approx(std::pow(10000, -62.0 / 64)).epsilon(1e-12));
  config.rotary = RotaryConfig{.base = 5e5, .divisor = 4};
  CHECK(turns(8) == Approx(std::pow(5e5, -0.25) / 4).epsilon(1e-12));
  config.rotary = RotaryConfig{.base = 5e5, .llama3 = Llama3Scaling{}};
  // Of 8192 positions, 8192 f / 2 pi waves: 1304 for pair 0, 4.9 for 13, 2.0 for 16, 0.5 for 19.
  for (const int pair : {0, 13})
    CHECK(turns(pair) == Approx(std::pow(5e5, -pair / 32.0)));
  for (const int pair : {19, 31})
    CHECK(turns(pair) == Approx(std::pow(5e5, -pair / 32.0) / 8));
  const double plain = std::pow(5e5, -16 / 32.0), share = (8192 * plain / (2 * M_PI) - 1) / 3;
  CHECK(turns(16) == Approx((1 - share) * plain / 8 + share * plain));
}

/// A model of a family with a folder of its own.
struct Folder : TempDir {
  explicit Folder(const DecoderConfig& config, std::uint64_t seed = 1) {
    write_model(path(), config, seed);
  }
};

Weights stored_weights(const Folder& folder) {
  Weights weights;
  const SafetensorsReader file(folder.path() / "model.safetensors");
  for (const StoredTensor& tensor : file.tensors()) {
    std::vector<float> values(tensor.byte_size() / sizeof(float));
    file.read(tensor, 0, std::as_writable_bytes(std::span(values)));
    weights[tensor.name] = {tensor.shape, Values(values.begin(), values.end())};
  }
  return weights;
}

TEST_CASE("a family's weights are stored in the parts that transformers names", "[family]") {
  const DecoderConfig config = parsed({{"model_type", "qwen2"}});
  const Folder folder(config);
  const auto made = random_model(config, make_cpu_device(), DType::f32, 1);
  const auto read = open_model(folder.path(), make_cpu_device());
  CHECK(flat_weights(*read.space).to_host() == flat_weights(*made.space).to_host());
  const SafetensorsReader file(folder.path() / "model.safetensors");
  const auto shape_of = [&](const std::string& name) { return file.find(name)->shape; };
  CHECK(shape_of("model.layers.1.self_attn.q_proj.weight") == Shape{24, 24});
  CHECK(shape_of("model.layers.1.self_attn.k_proj.weight") == Shape{12, 24});
  CHECK(shape_of("model.layers.1.self_attn.v_proj.bias") == Shape{12});
  CHECK(shape_of("model.layers.0.mlp.up_proj.weight") == Shape{40, 24});
  CHECK(shape_of("lm_head.weight") == Shape{61, 24});
  CHECK(file.find("model.layers.0.self_attn.qkv_proj.weight") == nullptr);
}

TEST_CASE("weights of a family are found without the prefix and refused by name", "[family]") {
  const DecoderConfig config = parsed({});
  const Folder folder(config);
  const auto made = random_model(config, make_cpu_device(), DType::f32, 1);
  const Weights weights = stored_weights(folder);
  const auto load = [&](const Weights& changed) {
    write_weights(folder.path() / "model.safetensors", changed);
    return open_model(folder.path(), make_cpu_device());
  };
  Weights bare;  // as a model without its head is saved, and with constants of old files
  for (const auto& [name, tensor] : weights)
    bare[name.starts_with("model.") ? name.substr(6) : name] = tensor;
  bare["layers.0.self_attn.rotary_emb.inv_freq"] = {{3}, {1, 2, 3}};
  CHECK(flat_weights(*load(bare).space).to_host() == flat_weights(*made.space).to_host());
  const auto refused = [&](auto&& change) {
    Weights changed = weights;
    change(changed);
    return error_message([&] { load(changed); });
  };
  const std::string key = "model.layers.1.self_attn.k_proj.weight";
  CHECK_THAT(refused([&](Weights& all) { all.erase(key); }),
             Contains("k_proj.weight\" is missing"));
  CHECK_THAT(refused([&](Weights& all) { all.erase("lm_head.weight"); }),
             Contains("\"lm_head.weight\" is missing"));
  CHECK_THAT(refused([&](Weights& all) {
               all[key] = {{24, 12}, all[key].second};
             }),
             Contains("has shape [24, 12], the configuration implies [12, 24]"));
  CHECK_THAT(refused([&](Weights& all) {
               all["model.layers.1.self_attn.q_norm.weight"] = {{6}, Values(6, 1)};
             }),
             Contains("q_norm.weight\" does not belong to a Llama of 2 layers"));
  CHECK_THAT(refused([&](Weights& all) {
               all["model.layers.0.self_attn.k_proj.bias"] = {{12}, Values(12, 1)};
             }),
             Contains("k_proj.bias\" does not belong"));
}

TEST_CASE("a tied family takes a head of its own only if it is the same", "[family]") {
  const DecoderConfig config = parsed({{"tie_word_embeddings", true}});
  const Folder folder(config);
  const auto made = random_model(config, make_cpu_device(), DType::f32, 1);
  CHECK(made.model->tied_table() == "model.embed_tokens.weight");
  Weights weights = stored_weights(folder);
  CHECK_FALSE(weights.contains("lm_head.weight"));
  weights["lm_head.weight"] = weights["model.embed_tokens.weight"];
  const auto load = [&] {
    write_weights(folder.path() / "model.safetensors", weights);
    return open_model(folder.path(), make_cpu_device());
  };
  CHECK(flat_weights(*load().space).to_host() == flat_weights(*made.space).to_host());
  weights["lm_head.weight"].second[7] += 1;
  CHECK_THAT(error_message(load),
             Contains("lm_head.weight differs from model.embed_tokens.weight") &&
                 Contains("tie_word_embeddings"));
}

}  // namespace
}  // namespace sluice::test::family_config_test
