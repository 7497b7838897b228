#include <functional>

#include "models/decoder/gguf_model.h"
#include "models/text/bpe/gguf_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/gguf_model.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::gguf_model_test {
namespace {

DecoderConfig config_of_test(Family family) {
  DecoderConfig config = config_of(family);
  config.n_layer = 2;
  config.n_head = 4;
  config.n_kv_head = 2;
  config.n_embd = 32;
  config.head_width = 8;
  config.n_inner = 40;
  config.vocab_size = 61;
  config.n_positions = 24;
  config.layer_norm_epsilon = 1e-5;
  config.rotary->base = 5e5;
  return config;
}

struct Folder : TempDir {
  std::filesystem::path put(const GgufFile& file) const {
    write_file(path() / "model.gguf", file.bytes());
    return path() / "model.gguf";
  }
};

TEST_CASE("a GGUF file's model is Hugging Face's, row by row", "[gguf]") {
  const Family family = GENERATE(Family::llama, Family::mistral, Family::qwen2, Family::qwen3);
  DecoderConfig config = config_of_test(family);
  config.tied = GENERATE(true, false);
  CAPTURE(name_of(family), config.tied);
  const auto made = random_model(config, make_cpu_device(), DType::f32, 1);
  const Folder folder;
  const GgufReader reader(folder.put(gguf_of(made)));
  DecoderConfig expected = config;
  if (family == Family::mistral) {
    expected.window = config.n_positions;
    expected.unused_keys = "{\"sliding_window\":24}";
  }
  CHECK(gguf_config(reader) == expected);
  const auto read = random_model(config, make_cpu_device(), DType::f32, 2);
  load_gguf_weights(reader, config, *read.space);
  CHECK(flat_weights(*read.space).to_host() == flat_weights(*made.space).to_host());
}

TEST_CASE("what a GGUF file leaves out is what llama.cpp takes", "[gguf]") {
  DecoderConfig config = config_of_test(Family::llama);
  config.n_kv_head = 4;
  const auto made = random_model(config, make_cpu_device(), DType::f32, 1);
  GgufFile file = gguf_of(made);
  const std::size_t before = file.keys.size();
  std::erase_if(file.keys, [](const auto& key) {
    return key.name == "llama.rope.freq_base" || key.name == "llama.attention.head_count_kv" ||
           key.name == "llama.attention.key_length" || key.name == "llama.rope.dimension_count";
  });
  REQUIRE(file.keys.size() == before - 4);
  const Folder folder;
  const DecoderConfig read = gguf_config(GgufReader(folder.put(file)));
  config.rotary->base = 10000;
  CHECK(read == config);
}

TEST_CASE("a GGUF file's linear scaling of positions counts, with a type or without", "[gguf]") {
  const auto made = random_model(config_of_test(Family::llama), make_cpu_device(), DType::f32, 1);
  const Folder folder;
  const auto divisor = [&](auto&& change) {
    GgufFile file = gguf_of(made);
    change(file);
    return gguf_config(GgufReader(folder.put(file))).rotary->divisor;
  };
  CHECK(divisor([](GgufFile& f) { f.real("llama.rope.scaling.factor", 4); }) == 4);
  CHECK(divisor([](GgufFile& f) { f.real("llama.rope.scale_linear", 2); }) == 2);
  CHECK(divisor([](GgufFile& f) {
          f.text("llama.rope.scaling.type", "none");
          f.real("llama.rope.scaling.factor", 4);
        }) == 1);
}

TEST_CASE("a GGUF file's tokenizer begins texts as llama.cpp does", "[gguf]") {
  using Ids = std::vector<std::int32_t>;
  const Folder folder;
  const auto begin = [&](const char* split, auto&& change) {
    GgufFile file;
    file.tokenizer(split);
    file.number("tokenizer.ggml.bos_token_id", 257);
    change(file);
    return gguf_tokenizer(GgufReader(folder.put(file)))->begin_of_text();
  };
  const auto nothing = [](GgufFile&) {};
  CHECK(begin("llama-bpe", nothing) == Ids{257});
  CHECK(begin("llama3", nothing) == Ids{257});
  CHECK(begin("llama-bpe", [](GgufFile& f) {
          f.boolean("tokenizer.ggml.add_bos_token", false);
        }).empty());
  CHECK(begin("smollm", nothing).empty());
  CHECK(begin("smollm", [](GgufFile& f) { f.boolean("tokenizer.ggml.add_bos_token", true); }) ==
        Ids{257});
  GgufFile file;
  file.tokenizer("qwen2");
  const auto qwen = gguf_tokenizer(GgufReader(folder.put(file)));
  CHECK(qwen->end_of_text() == 257);
  CHECK(qwen->decode(qwen->encode("e\u0301")) == "\u00E9");
}

TEST_CASE("what a GGUF file's model lacks or has too much is refused by name", "[gguf]") {
  const auto made = random_model(config_of_test(Family::llama), make_cpu_device(), DType::f32, 1);
  struct Row {
    std::function<void(GgufFile&)> change;
    const char* says;
  };
  const auto rename = [](std::size_t key, const char* name) {
    return [=](GgufFile& file) { file.keys[key].name = name; };
  };
  const std::vector<Row> rows{
      {[](GgufFile& f) { f.keys[0].value = GgufFile::text_of("gemma"); }, "architecture \"gemma\""},
      {rename(1, "llama.blocks"), "has no key \"llama.block_count\""},
      {[](GgufFile& f) { f.keys[1].value = GgufFile::bytes_of(3); }, "has no tensor \"blk.2."},
      {[](GgufFile& f) { f.keys[1].value = GgufFile::bytes_of(1); }, "has a tensor \"blk.1."},
      {[](GgufFile& f) { f.keys[6].value = GgufFile::bytes_of(3); },
       "not divisible by n_kv_head 3"},
      {[](GgufFile& f) { f.keys[4].value = GgufFile::bytes_of(48); }, "metadata imply [48, 32]"},
      {[](GgufFile& f) { f.keys[8].value = GgufFile::bytes_of(4); }, "rotates 4 columns"},
      {[](GgufFile& f) { f.number("llama.expert_count", 8); }, "has 8 as \"llama.expert_count\""},
      {[](GgufFile& f) { f.text("llama.rope.scaling.type", "yarn"); }, "has \"yarn\" as"},
      {[](GgufFile& f) { f.number("llama.attention.value_length", 4); }, "values of 4 columns"},
      {[](GgufFile& f) { f.number("llama.vocab_size", 60); }, "has 60 tokens by its"},
      {[](GgufFile& f) { f.real("llama.attention.scale", 0.5f); },
       "\"llama.attention.scale\" as 0.5, which is not supported"},
      {[](GgufFile& f) { f.real("llama.logit_scale", 2); }, "\"llama.logit_scale\" as 2.0, which"},
      {[](GgufFile& f) { f.number("llama.other_key", 1); }, "\"llama.other_key\" as 1, which"},
      {[](GgufFile& f) {
         f.tensors.push_back({"rope_freqs.weight", {1}, 0, "abcd"});
       },
       "\"rope_freqs.weight\""},
      {[](GgufFile& f) { f.tensors[0].name = "other.weight"; }, "no tensor \"token_embd.weight\""},
      {[](GgufFile& f) { f.tensors[3].data.replace(0, 4, GgufFile::bytes_of(NAN)); },
       "is not finite at element 0"}};
  const Folder folder;
  for (const auto& [change, says] : rows) {
    GgufFile file = gguf_of(made);
    change(file);
    const std::string error = error_message([&] {
      const GgufReader reader(folder.put(file));
      const DecoderConfig config = gguf_config(reader);
      const auto read = random_model(config, make_cpu_device(), DType::f32, 2);
      load_gguf_weights(reader, config, *read.space);
    });
    INFO(error);
    CHECK_THAT(error, Contains(says) && Contains("model.gguf"));
  }
}

}  // namespace
}  // namespace sluice::test::gguf_model_test
