#include "models/lora/peft_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/lora/adapter_file.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/temp_dir.h"

// adapter_config.json by the meaning that PEFT gives its keys; tests/interop/adapter_configs.py
// compares with PEFT itself.

namespace sluice::test::peft_config_test {
namespace {

/// A file as PEFT 0.21 writes it.
Json plain() {
  return Json::parse(R"({
    "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null,
    "auto_mapping": {"base_model_class": "LlamaForCausalLM", "unsloth_fixed": true},
    "base_model_name_or_path": "base", "bias": "none", "corda_config": null,
    "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null,
    "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
    "kasa_config": null, "layer_replication": null, "layers_pattern": null,
    "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 6, "lora_bias": false,
    "lora_dropout": 0.25, "lora_ga_config": null, "megatron_config": null,
    "megatron_core": "megatron.core", "modules_to_save": null, "monteclora_config": null,
    "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 4,
    "rank_pattern": {}, "revision": null, "target_modules": ["q_proj", "mlp.up_proj"],
    "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null,
    "use_bdlora": null, "use_dora": false, "use_qalora": false, "use_rslora": false,
    "velora_config": null})");
}

struct Adapter : TempDir {
  PeftConfig read(const Json& json) const {
    write_file(path() / "adapter_config.json", json.dump());
    return read_peft_config(path() / "adapter_config.json");
  }
  std::string refusal(const Json& json) const {
    return error_message([&] { read(json); });
  }
};

Json with(const char* key, const Json& value) {
  Json json = plain();
  json[key] = value;
  return json;
}

const std::string up = "model.layers.1.mlp.up_proj", q = "model.layers.10.self_attn.q_proj";

}  // namespace

TEST_CASE("an adapter's configuration is read as PEFT reads it", "[lora]") {
  const Adapter adapter;
  const PeftConfig config = adapter.read(plain());
  CHECK(config.base == "base");
  CHECK(config.lora == LoraConfig{.rank = 4, .alpha = 6, .dropout = 0.25});
  CHECK(adapter.read(with("use_rslora", true)).lora.scale() == Approx(6 / std::sqrt(4.0)));
  // PEFT's defaults stand for keys that are missing.
  const PeftConfig little = adapter.read({{"target_modules", {"q_proj"}}});
  CHECK(little.lora == LoraConfig{.rank = 8, .alpha = 8, .dropout = 0});
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"fan_in_fan_out", true},
                                                 {"revision", "main"},
                                                 {"inference_mode", false},
                                                 {"peft_version", "9.9"},
                                                 {"megatron_core", "other"},
                                                 {"qalora_group_size", 32},
                                                 {"loftq_config", {{"loftq_bits", 4}}},
                                                 {"eva_config", {{"rho", 2.0}}},
                                                 {"corda_config", {{"corda_method", "ipm"}}},
                                                 {"lora_ga_config", {{"scale", "unit"}}},
                                                 {"ensure_weight_tying", true},
                                                 {"init_lora_weights", false},
                                                 {"init_lora_weights", "Gaussian"},
                                                 {"init_lora_weights", "orthogonal"},
                                                 {"init_lora_weights", "eva"},

                                                 {"task_type", nullptr},
                                                 {"a key of tomorrow", false}}) {
    INFO(key);
    CHECK(adapter.read(with(key, value)).lora == config.lora);
  }
}

TEST_CASE("what changes an adapter and is not supported is refused by key and value", "[lora]") {
  const Adapter adapter;
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{
           {"peft_type", "ADALORA"},
           {"task_type", "SEQ_CLS"},
           {"bias", "lora_only"},
           {"bias", nullptr},
           {"use_dora", true},
           {"lora_bias", true},
           {"rank_pattern", {{"q_proj", 2}}},
           {"alpha_pattern", {{"q_proj", 2}}},
           {"modules_to_save", {"lm_head"}},
           {"layer_replication", {{0, 2}}},
           {"trainable_token_indices", {1, 2}},
           {"target_parameters", {"mlp.experts.gate_up_proj"}},
           {"megatron_config", {{"a", 1}}},
           {"velora_config", {{"a", 1}}},
           {"monteclora_config", {{"a", 1}}},
           {"kasa_config", {{"a", 1}}},
           {"kasa_config", Json::object()},
           {"trainable_token_indices", Json::array()},
           {"arrow_config", {{"top_k", 2}}},
           {"use_bdlora", {{"nblocks", 2}}},
           {"use_qalora", true},
           {"alora_invocation_tokens", {1}},
           {"init_lora_weights", "pissa_niter_16"},
           {"init_lora_weights", "olora"},
           {"init_lora_weights", "corda"},
           {"init_lora_weights", "loftq"},
           {"init_lora_weights", "lora_ga"},
           {"init_lora_weights", "mica"},
           {"init_lora_weights", 3},
           {"a key of tomorrow", 1},
           {"r", 4.5},
           {"r", nullptr},
           {"lora_alpha", "16"},
           {"lora_dropout", 1.5},
           {"use_rslora", "yes"},
           {"base_model_name_or_path", 7},
           {"target_modules", 3},
           {"target_modules", {"q_proj", 3}},
           {"target_modules", "(q_proj"},
           {"target_modules", nullptr},
           {"target_modules", Json::array()},
           {"exclude_modules", 1},
           {"layers_to_transform", "1"},
           {"layers_to_transform", {-1}},
           {"layers_pattern", "layers"}}) {
    const std::string said = adapter.refusal(with(key, value));
    INFO(said);
    CHECK_THAT(said, Contains("adapter_config.json: " + std::string(key) + " is " + value.dump()));
    CHECK(said.size() < 300);
  }
  Json json = plain();
  json.erase("target_modules");
  CHECK_THAT(adapter.refusal(json), Contains("target_modules is missing"));
  json = with("layers_pattern", "lay.*");
  json["layers_to_transform"] = 1;
  CHECK_THAT(adapter.refusal(json), Contains("layers_pattern is \"lay.*\"; only names"));
  json = with("layers_to_transform", 1);
  json["target_modules"] = ".*q_proj";
  CHECK_THAT(adapter.refusal(json), Contains("layers_to_transform is 1; target_modules must then"));
  for (const auto& [value, random] : std::vector<std::pair<Json, bool>>{{true, false},
                                                                        {"gaussian", false},
                                                                        {"eva", false},
                                                                        {false, true},
                                                                        {nullptr, true},
                                                                        {"orthogonal", true}})
    CHECK(adapter.read(with("init_lora_weights", value)).random_start == random);
}

TEST_CASE("modules are chosen by names, expressions and blocks as PEFT chooses them", "[lora]") {
  const Adapter adapter;
  const auto left_out = [&](const std::string& module, const Json& changes) {
    Json json = plain();
    json.update(changes);
    return adapter.read(json).left_out_by(module);
  };
  CHECK(left_out(up, Json::object()) == "");
  CHECK(left_out(q, Json::object()) == "");
  CHECK(left_out("model.layers.1.mlp.down_proj", Json::object()) == "target_modules");
  CHECK(left_out("model.layers.1.up_proj", Json::object()) ==
        "target_modules");  // not "mlp.up_proj"
  CHECK(left_out("model.layers.1.mlp.xup_proj", {{"target_modules", {"up_proj"}}}) ==
        "target_modules");
  CHECK(left_out(up, {{"target_modules", "All-Linear"}}) == "");
  // One expression matches the whole name.
  CHECK(left_out(q, {{"target_modules", R"(.*\.(q|v)_proj)"}}) == "");
  CHECK(left_out(up, {{"target_modules", R"(.*\.(q|v)_proj)"}}) == "target_modules");
  CHECK(left_out(q, {{"target_modules", "q_proj"}}) == "target_modules");
  CHECK(left_out(q, {{"target_modules", R"(model\.layers\.\d+\.self_attn\.q_pro)"}}) ==
        "target_modules");
  CHECK(left_out(q, {{"target_modules", R"((?!.*\.1\.).*q_proj)"}}) == "");
  CHECK_THAT(error_message([&] {
               left_out("model.layers.0." + std::string(40, 'a'),
                        {{"target_modules", "(a|b|.)*(a|.)*(a|.)*[yz]"}});
             }),
             Contains("takes too long"));
  // Exclusion comes first.
  CHECK(left_out(up, {{"exclude_modules", {"up_proj"}}}) == "exclude_modules");
  CHECK(left_out(q, {{"exclude_modules", {"up_proj"}}}) == "");
  CHECK(left_out(q, {{"exclude_modules", R"(.*\.10\..*)"}}) == "exclude_modules");
  CHECK(left_out(up, {{"exclude_modules", R"(.*\.10\..*)"}}) == "");
  // Blocks: the first number after two names, or after the list's name.
  CHECK(left_out(q, {{"layers_to_transform", {0, 10}}}) == "");
  CHECK(left_out(q, {{"layers_to_transform", 10}}) == "");
  CHECK(left_out(q, {{"layers_to_transform", {0, 1}}}) == "layers_to_transform");
  CHECK(left_out(q, {{"layers_to_transform", Json::array()}}) == "");
  CHECK(left_out("model.layers.1.mlp.experts.10.q_proj", {{"layers_to_transform", 10}}) ==
        "layers_to_transform");
  CHECK(left_out("layers.10.q_proj", {{"layers_to_transform", 10}}) == "layers_to_transform");
  CHECK(left_out(q, {{"layers_to_transform", 10}, {"layers_pattern", "layers"}}) == "");
  CHECK(left_out(q, {{"layers_to_transform", 10}, {"layers_pattern", {"h", "layers"}}}) == "");
  CHECK(left_out(q, {{"layers_to_transform", 10}, {"layers_pattern", "h"}}) ==
        "layers_to_transform");
  CHECK(left_out(q, {{"layers_to_transform", 0}, {"target_modules", {q}}}) == "");
}

TEST_CASE("tensors that adapt no layer of a block are called what they are", "[lora]") {
  const Adapter adapter;
  const auto refusal = [&](const std::string& tensor, const Json& changes = {}) {
    Json json = plain();
    if (!changes.is_null()) json.update(changes);
    write_file(adapter.path() / "adapter_config.json", json.dump());
    write_weights(adapter.path() / "adapter_model.safetensors",
                  {{"base_model.model." + q + ".lora_A.weight", {Shape{1}, {1}}},
                   {"base_model.model." + tensor, {Shape{1}, {1}}}});
    return error_message([&] { read_adapter(adapter.path()); });
  };
  const std::pair<const char*, const char*> rows[] = {
      {"model.embed_tokens.lora_embedding_A", "is an embedding's adapter;"},
      {"lm_head.lora_A.weight", "is an adapter outside the blocks, such as the head's;"},
      {"lm_head.weight", "is a module's own weight, saved whole;"},
      {"model.embed_tokens.base_layer.weight", "is a module's own weight, saved whole;"},
      {"model.layers.1.mlp.up_proj.lora_magnitude_vector", "is a part of DoRA;"},
      {"model.layers.1.mlp.up_proj.lora_A.default.weight", "is no matrix A or B of LoRA;"},
      {"model.layers.1.mlp.up_proj.base_layer.bias", "is a trained bias;"}};
  for (const auto& [tensor, says] : rows)
    CHECK_THAT(refusal(tensor), Contains("adapter_model.safetensors: tensor \"base_model.model." +
                                         std::string(tensor) + "\" " + says) &&
                                    Contains("merge_and_unload"));
  CHECK(refusal(up + ".lora_A.weight") == "(no error)");
  CHECK_THAT(refusal("model.layers.1.mlp.down_proj.lora_A.weight"),
             Contains("is of a layer that target_modules of adapter_config.json leaves out"));
  CHECK_THAT(refusal(up + ".lora_A.weight", {{"exclude_modules", {"up_proj"}}}),
             Contains("is of a layer that exclude_modules of adapter_config.json leaves out"));
  write_weights(adapter.path() / "adapter_model.safetensors",
                {{"base_model.model." + q + ".lora_B.weight", {Shape{1}, {1}}}});
  CHECK_THAT(error_message([&] { read_adapter(adapter.path()); }),
             Contains("has no tensor whose name ends with .lora_A.weight"));
}

}  // namespace sluice::test::peft_config_test
