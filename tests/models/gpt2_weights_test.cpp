#include "models/decoder/config_json/config_file.h"
#include "models/decoder/config_json/config_writer.h"
#include "models/decoder/weights.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/autograd.h"
#include "engine/io/stored_tensor.h"
#include "optim/make_optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::gpt2_weights_test {
namespace {

/// A folder with a small model that a test can spoil.
struct Folder : TempDir {
  DevicePtr device = make_cpu_device();
  TestModel original = random_model(small_config(), device, DType::f32);
  Weights weights = weights_of(*original.space);

  Folder() { write_file(path() / "config.json", config_json(small_config(), "float32", -1)); }

  void write(StoredType type = StoredType::F32) const {
    write_weights(path() / "model.safetensors", weights, type);
  }
  Weights load() const { return weights_of(*open_model(path(), device).space); }
  std::string error() const {
    return error_message([&] { load(); });
  }
};

}  // namespace

TEST_CASE("weights saved and loaded are the same bits, and saving them again gives the same file") {
  const Folder folder;
  save_weights(folder.path() / "model.safetensors", *folder.original.space, StoredType::F32);
  const auto loaded = open_model(folder.path(), folder.device);
  CHECK(weights_of(*loaded.space) == folder.weights);
  save_weights(folder.path() / "again", *loaded.space, StoredType::F32);
  CHECK(read_file(folder.path() / "again") == read_file(folder.path() / "model.safetensors"));
}

TEST_CASE("the checksum of weights is of all of their bytes") {
  const TempDir dir;
  // Read in pieces of 4 MiB. What the bytes mean does not count here.
  std::string bytes(std::size_t{9} << 20, 'x');
  const auto sum = [&] {
    write_file(dir.path() / "model.safetensors", bytes);
    return weights_checksum(dir.path());
  };
  std::set<std::uint32_t> sums{sum()};
  for (const std::size_t at : {std::size_t{0}, (std::size_t{4} << 20) - 1, std::size_t{4} << 20,
                               std::size_t{5} << 20, bytes.size() - 1}) {
    bytes[at] = 'y';
    CHECK(sums.insert(sum()).second);
  }
  bytes.pop_back();
  CHECK(sums.insert(sum()).second);
}

TEST_CASE("BF16 and F16 files hold the weights rounded to nearest, and load exactly") {
  const Folder folder;
  const auto [type, bits] =
      GENERATE(std::pair(StoredType::BF16, 8), std::pair(StoredType::F16, 11));
  save_weights(folder.path() / "model.safetensors", *folder.original.space, type);
  const auto loaded = open_model(folder.path(), folder.device);
  const Values before = flat_weights(*folder.original.space).to_host();
  const Values after = flat_weights(*loaded.space).to_host();
  for (std::size_t i = 0; i < before.size(); ++i) {
    // Half a unit of the last place; F16 has subnormal numbers below 2^-14.
    int exponent = 0;
    std::frexp(before[i], &exponent);
    if (type == StoredType::F16) exponent = std::max(exponent, -13);
    REQUIRE(std::abs(after[i] - before[i]) <= std::ldexp(0.5, exponent - bits));
  }
  save_weights(folder.path() / "again", *loaded.space, type);
  CHECK(read_file(folder.path() / "again") == read_file(folder.path() / "model.safetensors"));
}

TEST_CASE("shards load as one file does") {
  Folder folder;
  Weights shards[3];
  nlohmann::json map;
  std::size_t number = 0;
  for (const auto& [name, entry] : folder.weights) {
    const std::string file =
        "model-0000" + std::to_string(number % 3 + 1) + "-of-00003.safetensors";
    // Prefixes as hub files have them, in one of the shards only.
    const std::string stored = number % 3 == 1 ? "transformer." + name : name;
    shards[number++ % 3][stored] = entry;
    map[stored] = file;
  }
  for (int i = 0; i < 3; ++i)
    write_weights(folder.path() / ("model-0000" + std::to_string(i + 1) + "-of-00003.safetensors"),
                  shards[i]);
  const auto index = folder.path() / "model.safetensors.index.json";
  write_file(index, nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  CHECK(folder.load() == folder.weights);

  SECTION("a shard is missing") {
    fs::remove(folder.path() / "model-00002-of-00003.safetensors");
    CHECK_THAT(folder.error(), Contains("model-00002-of-00003.safetensors"));
  }
  SECTION("the index leads outside its folder") {
    for (const char* name :
         {"../model-00001-of-00003.safetensors", "/etc/passwd", "a/b", "..", "."}) {
      auto spoilt = map;
      spoilt["wte.weight"] = name;
      write_file(index, nlohmann::json{{"weight_map", spoilt}}.dump());
      INFO(name);
      CHECK(folder.error() != "(no error)");
      CHECK_THAT(folder.error(), Contains("index.json") || Contains("is not a regular file"));
    }
  }
  SECTION("the index is no index") {
    for (const char* text :
         {"[]", "{}", "{\"weight_map\": 3}", "{\"weight_map\": {\"a\": 3}}", "{"}) {
      write_file(index, text);
      INFO(text);
      CHECK_THAT(folder.error(), Contains("index.json"));
    }
  }
  SECTION("a tensor is in two shards") {
    shards[2]["wte.weight"] = folder.weights["wte.weight"];
    write_weights(folder.path() / "model-00003-of-00003.safetensors", shards[2]);
    CHECK_THAT(folder.error(), Contains("wte.weight") && Contains("twice"));
  }
}

TEST_CASE("what hub files carry beyond the weights is tolerated") {
  Folder folder;
  const Weights expected = folder.weights;
  SECTION("mask buffers") {
    folder.weights["h.0.attn.bias"] = {{1, 1, 16, 16}, Values(256, 1)};
    folder.weights["h.1.attn.masked_bias"] = {{}, {-1e4}};
  }
  SECTION("a copy of the tied head") {
    folder.weights["lm_head.weight"] = folder.weights["wte.weight"];
  }
  SECTION("prefixed names") {
    for (const auto& [name, entry] : expected) {
      folder.weights.erase(name);
      folder.weights["transformer." + name] = entry;
    }
  }
  folder.write();
  CHECK(folder.load() == expected);
}

TEST_CASE("a longer table of positions is cropped to the configuration's context") {
  Folder folder;
  folder.write();
  auto config = small_config();
  config.n_positions = 5;
  write_file(folder.path() / "config.json", config_json(config, "float32", -1));
  const auto loaded = folder.load().at("wpe.weight").second;
  const auto& whole = folder.weights["wpe.weight"].second;
  CHECK(loaded == Values(whole.begin(), whole.begin() + 5 * 16));

  config.n_positions = 17;
  write_file(folder.path() / "config.json", config_json(config, "float32", -1));
  CHECK_THAT(folder.error(), Contains("wpe.weight") && Contains("[17, 16]"));
}

TEST_CASE("weights that do not make the model are refused by name") {
  Folder folder;
  std::string word = "h.1.ln_2.bias";
  std::string reason;
  auto& entry = folder.weights[word];
  SECTION("missing") {
    folder.weights.erase(word);
    reason = "missing";
  }
  SECTION("additional") {
    word = "h.2.ln_2.bias";
    folder.weights[word] = entry;
    reason = "does not belong";
  }
  SECTION("of another size") {
    entry = {{15}, Values(15, 0)};
    reason = "[15]";
  }
  SECTION("transposed, as nn.Linear stores it") {
    word = "h.0.attn.c_attn.weight";
    folder.weights[word].first = {48, 16};
    reason = "[48, 16]";
  }
  SECTION("an untied head") {
    word = "lm_head.weight";
    folder.weights[word] = folder.weights["wte.weight"];
    folder.weights[word].second.back() += 1;
    reason = "tied";
  }
  SECTION("with and without the prefix") {
    word = "ln_f.bias";
    folder.weights["transformer." + word] = folder.weights[word];
    reason = "twice";
  }
  SECTION("NaN") {
    entry.second[3] = std::numeric_limits<double>::quiet_NaN();
    reason = "finite";
  }
  SECTION("NaN at first") {
    entry.second.front() = std::numeric_limits<double>::quiet_NaN();
    reason = "not finite at element 0";
  }
  SECTION("infinity") {
    entry.second.back() = -std::numeric_limits<double>::infinity();
    reason = "finite";
  }
  folder.write();
  CHECK_THAT(folder.error(), Contains(word) && Contains(reason));
}

TEST_CASE("a model has at most 16384 blocks") {
  DecoderConfig config = small_config();
  config.n_layer = 16384;
  CHECK(error_message([&] { validate(config); }) == "(no error)");
  config.n_layer = 16385;
  CHECK(error_message([&] { validate(config); }) == "n_layer is 16385; it must be from 1 to 16384");
}

TEST_CASE("an untied head is refused also where it differs far behind") {
  DecoderConfig config = small_config();
  config.vocab_size = (1 << 14) + 1;  // 1 MiB of 16 numbers each, and one token more
  const TempDir dir;
  const auto device = make_cpu_device();
  write_file(dir.path() / "config.json", config_json(config, "float32", -1));
  Weights weights = weights_of(*random_model(config, device, DType::f32).space);
  weights["lm_head.weight"] = weights["wte.weight"];
  const auto error = [&] {
    write_weights(dir.path() / "model.safetensors", weights);
    return error_message([&] { open_model(dir.path(), device); });
  };
  CHECK(error() == "(no error)");
  weights["lm_head.weight"].second.back() += 1;
  CHECK_THAT(error(), Contains("lm_head.weight differs from wte.weight"));
}

TEST_CASE("integers are not weights") {
  const Folder folder;
  std::vector<StoredTensor> list;
  for (const auto& [name, entry] : folder.weights)
    list.push_back({.name = name, .type = StoredType::I32, .shape = entry.first});
  SafetensorsWriter writer(folder.path() / "model.safetensors", list, {});
  for (const auto& tensor : writer.tensors())
    writer.write(std::vector<std::byte>(tensor.byte_size()));
  writer.finish();
  CHECK_THAT(folder.error(), Contains("I32"));
}

TEST_CASE("config.json is read back as it was written") {
  const TempDir dir;
  DecoderConfig config = small_config();
  config.n_inner = GENERATE(0, 24);
  config.layer_norm_epsilon = 3e-6;
  config.begin_id = 3;
  config.end_ids = {3};
  write_file(dir.path() / "config.json", config_json(config, "float32", 3));
  CHECK(read_config(dir.path() / "config.json") == config);
}

TEST_CASE("values in config.json that make no model are refused with key and file") {
  const TempDir dir;
  const auto good = nlohmann::json::parse(config_json(small_config(), "float32", -1));
  const auto error_for = [&](const char* key, const char* value) {
    auto json = good;
    json[key] = nlohmann::json::parse(value);
    write_file(dir.path() / "config.json", json.dump());
    return error_message([&] { read_config(dir.path() / "config.json"); });
  };
  for (const char* key : {"n_layer", "n_head", "n_embd", "vocab_size", "n_positions"}) {
    for (const char* value :
         {"2.5", "\"12\"", "0", "-1", "1e30", "null", "9223372036854775808", "9223372036854775807",
          "18446744073709551616", "-9223372036854775808", "true", "[]", "{}", "16777217"}) {
      INFO(key << " " << value);
      CHECK_THAT(error_for(key, value), Contains(key) && Contains("config.json"));
    }
  }
  struct Row {
    const char *key, *value;
  };
  for (const auto& [key, value] : {Row{"n_inner", "-4"},
                                   {"n_inner", "2.5"},
                                   {"activation_function", "\"swish\""},
                                   {"activation_function", "3"},
                                   {"tie_word_embeddings", "false"},
                                   {"scale_attn_weights", "false"},
                                   {"scale_attn_by_inverse_layer_idx", "true"},
                                   {"model_type", "\"bloom\""},
                                   {"layer_norm_epsilon", "0"},
                                   {"layer_norm_epsilon", "-1e-5"},
                                   {"layer_norm_epsilon", "1"},
                                   {"layer_norm_epsilon", "\"1e-5\""}}) {
    INFO(key << " " << value);
    CHECK_THAT(error_for(key, value), Contains(key) && Contains("config.json"));
  }
  CHECK_THAT(error_for("n_head", "3"), Contains("16") && Contains("not divisible"));
  write_file(dir.path() / "config.json", "[1]");
  CHECK_THAT(error_message([&] { read_config(dir.path() / "config.json"); }), Contains("object"));
  write_file(dir.path() / "config.json", "{\"n_layer\": 1, \"n_layer\": 2}");
  CHECK_THAT(error_message([&] { read_config(dir.path() / "config.json"); }), Contains("twice"));
}

TEST_CASE("the presets are the published sizes") {
  const std::pair<const char*, std::int64_t> published[] = {
      {"gpt2", 124439808},          {"gpt2-medium", 354823168},   {"gpt2-large", 774030080},
      {"gpt2-xl", 1557611200},      {"smollm2-135m", 134515008},  {"tinyllama-1.1b", 1100048384},
      {"llama-3.2-1b", 1235814400}, {"llama-3.1-8b", 8030261248}, {"mistral-7b", 7248023552},
      {"qwen2.5-0.5b", 494032768},  {"qwen3-0.6b", 596049920},    {"qwen3-8b", 8190735360},
      {"gptj-6b", 6050882784},      {"pythia-160m", 162322944},   {"pythia-1.4b", 1414647808}};
  for (const auto& [name, count] : published)
    CHECK(preset(name).value().parameter_count() == count);
  CHECK_FALSE(preset("gpt3"));
  // Rotary positions have no parameters, so counts do not show them.
  CHECK(preset("gptj-6b")->rotary == RotaryConfig{.width = 64, .pairs = RotaryPairs::interleaved});
  CHECK(preset("pythia-160m")->rotary == RotaryConfig{.width = 16});
  CHECK(preset("qwen3-0.6b")->rotary == RotaryConfig{.base = 1e6});
}

TEST_CASE("a token's operations are those counted by hand") {
  // Six for each of 2 * 8 + 2 * 6 + 10 = 38 weights. Attention has 2 * 4 * 2 operations with keys
  // and as many with values if all 4 positions count, of which half do: 16 forwards and 32
  // backwards.
  const DecoderConfig tiny{
      .n_layer = 1, .n_head = 1, .n_embd = 2, .n_inner = 3, .vocab_size = 5, .n_positions = 4};
  CHECK(tiny.flops_per_token(4) == 6 * 38 + 48);
  // 12 layers of 12 * 768^2 weights, and a head of 50257 * 768.
  CHECK(preset("gpt2").value().flops_per_token(1024) == 797'815'296);
}

TEST_CASE("on the meta device a model far larger than memory is only counted") {
  const auto device = make_meta_device(std::size_t{1} << 45);
  const auto config = preset("gpt2-xl").value();
  Decoder model(config);
  ParameterSpace space(model.parameters(), device, DType::bf16, ParameterSpace::Use::training);
  const auto optimizer = make_adamw(space, {});
  CHECK(space.parameters() == config.parameter_count());
  // bf16 weights, f32 master weights, gradients and two moments.
  const auto states = static_cast<std::size_t>(space.size()) * (2 + 4 + 4 + 8);
  CHECK(device->arena().peak() >= states);
  CHECK(device->arena().peak() < states + (std::size_t{64} << 20));
  const auto ids = Tensor::from_tokens(device, {1, 1024}, std::vector<std::int32_t>(1024));
  backward(model.loss(ids, ids, {}).loss);
  space.zero_unused_gradients();
  optimizer->step(1e-3);
  CHECK(device->arena().peak() > states + (std::size_t{64} << 20));
}

TEST_CASE("initialisation is a function of the seed alone, with GPT-2's deviations") {
  const ThreadCount one(1);
  const auto device = make_cpu_device();
  auto config = small_config();
  config.n_embd = 64;
  const auto start = [&](std::uint64_t seed) {
    Decoder model(config);
    ParameterSpace space(model.parameters(), device, DType::f32, ParameterSpace::Use::inference);
    space.initialize(seed);
    return weights_of(space);
  };
  const Weights weights = start(5);
  CHECK(start(5) == weights);
  CHECK(start(6) != weights);
  for (const auto& [name, entry] : weights) {
    INFO(name);
    double sum = 0;
    for (const double value : entry.second)
      sum += value * value;
    const double deviation = std::sqrt(sum / static_cast<double>(entry.second.size()));
    const bool residual = name.ends_with("c_proj.weight");
    if (entry.first.size() == 2)
      CHECK(deviation == Approx(residual ? 0.01 : 0.02).epsilon(0.1));  // 0.02 / sqrt(2 * 2)
    else
      CHECK(deviation == (name.ends_with(".weight") ? 1 : 0));
  }
}

}  // namespace sluice::test::gpt2_weights_test
