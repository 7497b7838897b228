#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/train_gpt2/bad_steps.h"
#include "engine/io/safetensors.h"
#include "models/text/byte_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/gguf_model.h"
#include "tests/support/program.h"
#include "tests/support/space.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/ranks.h"

// Exit code 3 means the same in every program: numbers that are not finite. One sentence says
// where.

namespace sluice::test::not_finite_test {
namespace {

DecoderConfig config_of_bytes() {
  DecoderConfig config = small_config();
  config.vocab_size = 256;
  return config;
}

struct Models : TempDir {
  Models() {
    write_file(path() / "text.txt", std::string(300, 'a') + std::string(300, 'b'));
    write_tokens(path() / "tokens.bin", 600, 256);
  }
  std::string at(const std::string& name) const { return (path() / name).string(); }

  /// A model of which these elements have other values.
  template <class Change>
  std::string model(const std::string& name, const Change& change) const {
    const fs::path folder = path() / name;
    write_model(folder, config_of_bytes());
    ByteTokenizer().save(folder);
    Weights weights = weights_of(*open_model(folder, make_cpu_device()).space);
    change(weights);
    write_weights(folder / "model.safetensors", weights);
    return folder.string();
  }
  /// The model's numbers are finite up to position 4, and those of position 5 are not.
  std::string late() const {
    return model("late", [](Weights& weights) {
      for (std::size_t id = 0; id < 256; ++id)
        weights.at("wte.weight").second[id * 16 + 7] = 3e38;
      weights.at("wpe.weight").second[5 * 16 + 7] = 3e38;
    });
  }
  /// The sum of embedding and position is above the largest number of fp16.
  std::string overflows() const {
    return model("overflows", [](Weights& weights) {
      for (std::size_t id = 0; id < 256; ++id)
        weights.at("wte.weight").second[id * 16 + 7] = 60000;
      for (std::size_t position = 0; position < 16; ++position)
        weights.at("wpe.weight").second[position * 16 + 7] = 60000;
    });
  }
  std::string large(const std::string& name, double value) const {
    return model(name, [&](Weights& weights) { weights.at("ln_f.weight").second[3] = value; });
  }

  ProgramResult ends_with_3(const std::string& program, const Arguments& arguments,
                            const std::string& says) const {
    const ProgramResult result = run_program(program, arguments);
    INFO(result.out);
    INFO(result.err);
    CHECK(result.exit_code == 3);
    CHECK(count_lines(result.err) == 1);
    CHECK(result.err.size() < 300 + path().string().size());
    CHECK_THAT(result.err, StartsWith(program + ": error: ") && Contains(says));
    return result;
  }
};

}  // namespace

TEST_CASE("generate stops before the token that logits of NaN would give", "[not_finite]") {
  const Models models;
  const std::string model = models.late();
  const Arguments flags{"--model", model, "--max-tokens", "30", "--threads", "1"};
  const auto with = [&](const Arguments& more) {
    Arguments all = flags;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  // Positions 1 to 4 give a token each.
  for (const Arguments& more : {Arguments{}, Arguments{"--no-cache"}, {"--temperature", "0"}}) {
    Arguments text{"--prompt", "ab"}, ids{"--tokens", "97 98"};
    text.insert(text.end(), more.begin(), more.end());
    ids.insert(ids.end(), more.begin(), more.end());
    const ProgramResult result = models.ends_with_3(
        "generate", with(text), "new token 5: the model's logits are not finite");
    CHECK(result.out.size() == std::string("ab").size() + 4 + 1);
    CHECK(result.out.ends_with('\n'));
    CHECK(models.ends_with_3("generate", with(ids), "new token 5: ").out.empty());
  }
  // Of several prompts the third, which is longer, is the first to come there.
  write_file(models.path() / "prompts.txt", "a\nb\nabcd\na\n");
  const ProgramResult many =
      models.ends_with_3("generate", with({"--prompts", models.at("prompts.txt")}),
                         "prompt 3, new token 3: the model's logits are not finite (nan for id 0)");
  CHECK(many.out.empty());
  // A text that ended before is there.
  write_file(models.path() / "prompts.txt", "a\nabcd\n");
  const ProgramResult second =
      models.ends_with_3("generate",
                         {"--model", model, "--max-tokens", "3", "--batch-size", "1", "--prompts",
                          models.at("prompts.txt")},
                         "prompt 2, new token 3: ");
  CHECK(count_lines(second.out) == 1);
  CHECK_THAT(second.out, StartsWith(R"({"prompt":"a",)"));
}

TEST_CASE("evaluate ends with 3 if a loss is not finite, by one rank and by several",
          "[not_finite]") {
  const Models models;
  const std::string model = models.late();
  const Arguments flags{"--model", model, "--data", models.at("text.txt"), "--threads", "1"};
  const ProgramResult text =
      models.ends_with_3("evaluate", flags, "that of sequences 0 to 36 of 38");
  CHECK_THAT(text.out, Contains("loss         nan nats") && Contains("perplexity   nan\n"));
  Arguments json = flags;
  json.emplace_back("--json");
  const auto object = nlohmann::json::parse(models.ends_with_3("evaluate", json, "not finite").out);
  for (const char* key : {"loss", "perplexity", "bits_per_byte"})
    CHECK(object.at(key).is_null());
  CHECK(object.at("tokens") == 599);
  // With sequences of 5 no position 5 is computed.
  Arguments few = flags;
  few.insert(few.end(), {"--seq-len", "5"});
  CHECK(run_program("evaluate", few).exit_code == 0);

  if (!have_mpirun()) return;
  for (Arguments each : {flags, json}) {
    each.insert(each.begin(), {"-n", "2", (fs::path(SLUICE_BIN_DIR) / "evaluate").string()});
    const Arguments given = mpirun_flags();
    each.insert(each.begin(), given.begin(), given.end());
    const ProgramResult result = run_program(SLUICE_MPIRUN, each);
    INFO(result.err);
    CHECK(result.exit_code == 3);
    CHECK_THAT(result.err, Contains("evaluate: error: the loss is not finite"));
  }
}

TEST_CASE("a perplexity of many digits is printed in few", "[not_finite]") {
  const Models models;
  // Logits of thousands, of which the target's is seldom the largest.
  const std::string model = models.model("sure", [](Weights& weights) {
    for (double& gain : weights.at("ln_f.weight").second)
      gain = 60;
  });
  const std::string text =
      run_well("evaluate", {"--model", model, "--data", models.at("text.txt")});
  INFO(text);
  const std::size_t at = text.find("perplexity   ");
  REQUIRE(at != std::string::npos);
  const std::string value = text.substr(at + 13, text.find('\n', at) - at - 13);
  CHECK(value.size() <= 10);
  CHECK_THAT(value, Contains("e+"));
}

TEST_CASE("probe ends with 3, names the first place and still writes its dump", "[not_finite]") {
  const Models models;
  const Arguments flags{"--model", models.late(), "--tokens", models.at("tokens.bin"), "--threads",
                        "1"};
  Arguments dump = flags;
  dump.insert(dump.end(), {"--dump", models.at("dump")});
  const std::string place = "first seen in the output of embedding in wte (forward)";
  CHECK_THAT(models.ends_with_3("probe", flags, place).out, StartsWith("loss nan grad_norm nan\n"));
  models.ends_with_3("probe", dump, place);
  const SafetensorsReader reader(models.path() / "dump");
  REQUIRE(reader.find("logits") != nullptr);
  std::vector<float> logits(16 * 256);
  reader.read(*reader.find("logits"), 0, std::as_writable_bytes(std::span(logits)));
  CHECK_FALSE(std::isfinite(logits[5 * 256 + 1]));
  CHECK(reader.find("grad.h.0.ln_1.weight") != nullptr);
}

TEST_CASE("a training that skipped every update writes no model and ends with 3", "[not_finite]") {
  const Models models;
  const auto flags = [&](const std::string& output, const std::string& more) {
    return words("--data " + models.at("text.txt") +
                 " --batch-size 2 --seq-len 8 --threads 1 --val-every 0 --sample-tokens 0 "
                 "--precision fp16 --output " +
                 models.at(output) + " " + more);
  };
  const std::string overflows = models.overflows();
  const ProgramResult result =
      run_program("train_gpt2", flags("run", "--steps 3 --model " + overflows));
  INFO(result.err);
  CHECK(result.exit_code == 3);
  CHECK_THAT(result.err,
             Contains("every update of 3 steps was skipped, the last because the gradient "
                      "overflowed with a loss scale of 16384") &&
                 Contains("no model was written"));
  CHECK_FALSE(fs::exists(models.path() / "run/model"));
  CHECK_FALSE(fs::exists(models.path() / "run/checkpoints"));
  CHECK(run_program("train_gpt2", flags("good", "--steps 3 --n-layer 1 --n-head 2 --n-embd 16"))
            .exit_code == 0);
  CHECK(fs::exists(models.path() / "good/model"));

  BadSteps bad(5);
  bad.record(1, {.gradient_norm = INFINITY, .loss_scale = 2, .applied = false});
  CHECK_THAT(error_message([&] { bad.require_some(1, 0); }), Contains("a loss scale of 2;"));
  bad.require_some(1, 1);  // an update before the run was resumed
  bad.require_some(0, 0);
}

TEST_CASE("a validation loss that is none ends a training with 3", "[not_finite]") {
  const Models models;
  const std::string flags = " --batch-size 2 --seq-len 5 --threads 1 --sample-tokens 0 --steps 0 ";
  // Rows of 5 positions are finite, and validation has rows as long.
  const Arguments arguments =
      words("--model " +
            models.model("inf",
                         [](Weights& weights) {
                           weights.at("ln_f.bias").second[7] = 1e30;
                           for (std::size_t id = 0; id < 256; ++id)
                             weights.at("wte.weight").second[id * 16 + 7] =
                                 id % 2 == 0 ? 1e15 : -1e15;
                         }) +
            " --data " + models.at("text.txt") + " --val-data " + models.at("text.txt") + flags +
            " --output " + models.at("run"));
  const ProgramResult result = run_program("train_gpt2", arguments);
  INFO(result.err);
  CHECK(result.exit_code == 3);
  CHECK_THAT(result.err, Contains("the validation loss of step 0 is "));
  CHECK_FALSE(fs::exists(models.path() / "run/model"));
}

TEST_CASE("a weight that a type cannot hold is refused, and what was there stays", "[not_finite]") {
  const Models models;
  const std::string good = models.large("good", 1), out = models.at("out");
  run_well("convert", {"--input", good, "--output", out, "--dtype", "f16"});
  const std::string before = read_file(models.path() / "out/model.safetensors");
  const auto refused = [&](const std::string& input, const std::string& dtype,
                           const std::string& says) {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(models.path()))
      names.insert(entry.path().string());
    const ProgramResult result =
        models.ends_with_3("convert", {"--input", input, "--output", out, "--dtype", dtype}, says);
    CHECK(result.out.empty());
    CHECK(read_file(models.path() / "out/model.safetensors") == before);
    for (const auto& entry : fs::recursive_directory_iterator(models.path()))
      CHECK(names.contains(entry.path().string()));
  };
  refused(models.large("f16", 70000), "f16",
          "--dtype f16: tensor \"ln_f.weight\" is 70000 at element 3, too large for f16; bf16 and "
          "f32 can hold it");
  refused(models.large("negative", -65520), "f16", "is -65520 at element 3, too large for f16");
  refused(models.large("bf16", 3.4e38), "bf16",
          "is 3.4e+38 at element 3, too large for bf16; f32 can hold it");
  refused(models.large("bf16 too", 3.4e38), "f16", "too large for f16; f32 can hold it");
  // The largest that are still rounded to a number.
  run_well("convert", {"--input", models.large("most", 65519), "--output", models.at("most16"),
                       "--dtype", "f16"});
  run_well("convert", {"--input", models.large("most b", 3.39e38), "--output",
                       models.at("most b16"), "--dtype", "bf16"});
  run_well("evaluate", {"--model", models.at("most16"), "--data", models.at("text.txt")});

  // A GGUF file's weights have their names in the folder that is made.
  GgufFile file = small_gguf();
  file.tensors.back().data.replace(4, 4, GgufFile::bytes_of(1e5F));
  write_file(models.path() / "model.gguf", file.bytes());
  refused(models.at("model.gguf"), "f16", "is 100000 at element 1, too large for f16");

  // Programs that compute in such a type refuse it when they read it.
  const std::string large = models.at("f16"), says =
                                                  "model.safetensors: tensor \"ln_f.weight\" is "
                                                  "70000 at element 3, too large for f16";
  models.ends_with_3("generate", {"--model", large, "--prompt", "a", "--precision", "fp16"}, says);
  models.ends_with_3(
      "evaluate", {"--model", large, "--data", models.at("text.txt"), "--precision", "fp16"}, says);
  models.ends_with_3("probe",
                     {"--model", large, "--tokens", models.at("tokens.bin"), "--precision", "fp16"},
                     says);
  models.ends_with_3("train_gpt2",
                     words("--model " + large + " --data " + models.at("text.txt") +
                           " --precision fp16 --seq-len 8 --batch-size 2 --steps 1 --output " +
                           models.at("trained")),
                     says);
  CHECK_FALSE(fs::exists(models.path() / "trained"));
}

TEST_CASE("a merged weight that a type cannot hold is refused", "[not_finite]") {
  const Models models;
  const std::string model = models.large("base", 1);
  run_well("train_gpt2", words("--model " + model + " --data " + models.at("text.txt") +
                               " --lora-rank 1 --lora-alpha 1 --lora-targets c_fc --seq-len 8 "
                               "--batch-size 2 --steps 1 --sample-tokens 0 --output " +
                               models.at("run")));
  const fs::path file = models.path() / "run/model/adapter_model.safetensors";
  Weights adapter;
  {
    const SafetensorsReader reader(file);
    for (const StoredTensor& tensor : reader.tensors()) {
      const auto count = static_cast<std::size_t>(element_count(tensor.shape));
      adapter[tensor.name] = {tensor.shape, std::vector<double>(count, 0)};
      if (tensor.name.find(".h.1.mlp.c_fc.") == std::string::npos) continue;
      const bool is_a = tensor.name.ends_with("lora_A.weight");
      adapter[tensor.name].second[is_a ? 2 : 5] = 1e3;
    }
  }
  write_weights(file, adapter);
  // c_fc is stored as [16, 64], and element (2, 5) is about 10^6.
  models.ends_with_3("convert",
                     {"--input", model, "--merge", models.at("run/model"), "--output",
                      models.at("merged"), "--dtype", "f16"},
                     "tensor \"h.1.mlp.c_fc.weight\" with this change is 1e+06 at element 133, too "
                     "large for f16; bf16 and f32 can hold it");
  CHECK_FALSE(fs::exists(models.path() / "merged"));
  run_well("convert", {"--input", model, "--merge", models.at("run/model"), "--output",
                       models.at("merged"), "--dtype", "bf16"});
}

}  // namespace sluice::test::not_finite_test
