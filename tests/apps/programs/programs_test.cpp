#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/io/token_file.h"
#include "models/text/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/gradcheck.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tokenizer_data.h"

// Tests what the programs print, write and read back from each other.

namespace sluice::test::programs_test {
namespace {

struct Work : TempDir {
  Work() { write_tokens(path() / "t.bin", 600, 64); }

  std::string at(const std::string& name) const { return (path() / name).string(); }
  std::string bytes(const std::string& name) const { return read_file(path() / name); }

  /// Trains a tiny model of random weights.
  Arguments train(const std::string& output, const Arguments& more = {}) const {
    Arguments all{"--n-layer",    "1",  "--n-head",     "2", "--n-embd",  "16", "--context", "16",
                  "--vocab-size", "64", "--batch-size", "4", "--threads", "1",  "--steps",   "3"};
    all.insert(all.end(), {"--output", at(output)});
    // CLI11 refuses a flag given twice: what `more` has replaces it here.
    for (std::size_t i = 0; i + 1 < more.size(); i += 2) {
      const auto old = std::find(all.begin(), all.end(), more[i]);
      if (old != all.end()) all.erase(old, old + 2);
      all.insert(all.end(), {more[i], more[i + 1]});
    }
    if (std::find(all.begin(), all.end(), "--data") == all.end())
      all.insert(all.end(), {"--data", at("t.bin")});
    return all;
  }
};

std::vector<Json> events(const fs::path& log) {
  std::vector<Json> list;
  std::istringstream lines(read_file(log));
  for (std::string line; std::getline(lines, line);)
    list.push_back(Json::parse(line));
  return list;
}

/// A tensor of a safetensors file as f32.
Values floats(const fs::path& file, const std::string& name) {
  const SafetensorsReader reader(file);
  const StoredTensor* tensor = reader.find(name);
  REQUIRE(tensor != nullptr);
  REQUIRE(tensor->type == StoredType::F32);
  std::vector<float> values(tensor->byte_size() / 4);
  reader.read(*tensor, 0, std::as_writable_bytes(std::span(values)));
  return {values.begin(), values.end()};
}

std::string verse(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i)
    text += "line " + std::to_string(i) + " of a poem, \xC3\xA4\xC3\xB6\xC3\xBC\n";
  return text;
}

}  // namespace

TEST_CASE("every program explains itself") {
  for (const char* program : {"train_gpt2", "generate", "probe", "convert", "prepare_data"}) {
    const std::string help = run_well(program, {"--help"});
    CHECK_THAT(help, Contains("Usage: " + std::string(program)) && Contains("--version"));
    CHECK(run_well(program, {"-h"}) == help);
    CHECK_THAT(run_well(program, {"--version"}), Contains("Sluice"));
  }
}

TEST_CASE("the saved configuration gives the same run again") {
  const Work work;
  run_well("train_gpt2", work.train("a", {"--lr", "2.5e-3", "--seed", "77", "--dropout", "0.1",
                                          "--trace", work.at("a \"b\" c"), "--micro-batch", "2"}));
  run_well("train_gpt2", {"--config", work.at("a/config.toml"), "--output", work.at("b")});
  CHECK(work.bytes("a/model/model.safetensors") == work.bytes("b/model/model.safetensors"));
  std::string config = work.bytes("b/config.toml");
  const auto output = config.find(work.at("b"));
  REQUIRE(output != std::string::npos);
  config.replace(output, work.at("b").size(), work.at("a"));
  CHECK(config == work.bytes("a/config.toml"));
}

TEST_CASE("a configuration file sets flags, and the command line wins") {
  const Work work;
  write_file(work.path() / "run.toml", "# a comment\nseed=5\nlr=0.002\nn-layer = 2\ndropout=0.1\n");
  auto flags = work.train("a", {"--config", work.at("run.toml"), "--seed", "6"});
  const auto layer = std::find(flags.begin(), flags.end(), "--n-layer");
  flags.erase(layer, layer + 2);
  run_well("train_gpt2", flags);
  run_well("train_gpt2",
           work.train("b", {"--seed", "6", "--lr", "0.002", "--n-layer", "2", "--dropout", "0.1"}));
  CHECK(work.bytes("a/model/model.safetensors") == work.bytes("b/model/model.safetensors"));
  CHECK_THAT(work.bytes("a/config.toml"), Contains("seed=6") && Contains("n-layer=2"));
}

TEST_CASE("a reader of stdout that goes away does not end the training") {
  const Work work;
  std::string command = "'" SLUICE_BIN_DIR "/train_gpt2'";
  for (const auto& argument : work.train("out", {"--steps", "40"}))
    command += " '" + argument + "'";
  CHECK(std::system((command + " | head -n 1 > /dev/null").c_str()) == 0);
  // The shell waits for the whole pipeline, so the training has ended one way or the other.
  CHECK(events(work.path() / "out" / "log.jsonl").back().at("event") == "end");
}

TEST_CASE("log.jsonl has the events and fields that its readers expect") {
  const Work work;
  write_file(work.path() / "poem.txt", verse(300));
  run_well("train_gpt2", work.train("out", {"--data", work.at("poem.txt"), "--vocab-size", "256",
                                            "--steps", "6", "--val-every", "2", "--sample-every",
                                            "3", "--save-every", "4", "--sample-tokens", "4"}));
  const auto list = events(work.path() / "out" / "log.jsonl");
  std::map<std::string, int> count;
  std::int64_t step = 0;
  for (const auto& event : list) {
    const auto name = event.at("event").get<std::string>();
    ++count[name];
    if (name == "train") {
      CHECK(event.at("step") == ++step);
      for (const char* field : {"loss", "grad_norm", "lr", "tokens", "step_ms", "tokens_per_second",
                                "mfu", "memory_bytes"}) {
        INFO(field);
        CHECK(event.at(field).is_number());
        CHECK(event.at(field).get<double>() > 0);
      }
      CHECK(event.at("tokens") == 64);
      CHECK(event.at("lr") == Approx(1e-3 * static_cast<double>(step) / 20));
    }
    if (name == "val") CHECK(event.at("loss").get<double>() > 0);
    if (name == "sample") CHECK(event.at("text").is_string());
    if (name == "checkpoint") CHECK(fs::exists(event.at("path").get<std::string>()));
  }
  CHECK(list.front().at("event") == "start");
  CHECK(list.back().at("event") == "end");
  CHECK(list.back().at("step") == 6);
  CHECK(count ==
        std::map<std::string, int>{
            {"start", 1}, {"train", 6}, {"val", 4}, {"sample", 2}, {"checkpoint", 2}, {"end", 1}});
}

TEST_CASE("the planned peak of memory is the measured one, to the byte") {
  // Samples are off: a plan does not count the KV cache of generation, and in models as small as
  // these the cache may be larger than a training step.
  const Work work;
  write_file(work.path() / "poem.txt", verse(1500));
  const std::vector<Arguments> configurations{
      {},
      {"--precision", "bf16"},
      {"--n-embd", "64", "--n-layer", "3", "--dropout", "0.1", "--micro-batch", "2"},
      {"--data", work.at("poem.txt"), "--vocab-size", "300", "--val-every", "1"},
      {"--optimizer", "sgd", "--batch-size", "1"},
      // Large enough that a step needs more than the measurement of the machine's speed.
      {"--n-embd", "128", "--context", "128", "--vocab-size", "4000", "--batch-size", "4",
       "--n-layer", "2", "--steps", "2"},
      {"--n-embd", "128", "--context", "128", "--vocab-size", "4000", "--batch-size", "4",
       "--micro-batch", "2", "--n-layer", "2", "--steps", "2", "--precision", "bf16", "--dropout",
       "0.2"}};
  int number = 0;
  for (auto more : configurations) {
    more.insert(more.end(), {"--sample-tokens", "0"});
    const std::string name = "run" + std::to_string(number++);
    INFO(name);
    run_well("train_gpt2", work.train(name, more));
    const Json end = events(work.path() / name / "log.jsonl").back();
    CHECK(end.at("planned_bytes") == end.at("engine_peak_bytes"));
  }
}

TEST_CASE("gradients that stay infinite end the run with exit code 3 and leave good weights") {
  const Work work;
  const auto flags = work.train("out", {"--lr", "1e30", "--warmup-steps", "0", "--steps", "30",
                                        "--save-every", "1", "--max-bad-steps", "3"});
  const ProgramResult result = run_program("train_gpt2", flags);
  CHECK(result.exit_code == 3);
  CHECK(count_lines(result.err) == 1);
  CHECK_THAT(result.err, Contains("not finite"));
  CHECK_FALSE(fs::exists(work.path() / "out" / "model"));
  const auto log = events(work.path() / "out" / "log.jsonl");
  CHECK(std::count_if(log.begin(), log.end(), [](const Json& event) {
          return event.at("event") == "warning" &&
                 event.at("message").get<std::string>().find("first seen in") != std::string::npos;
        }) == 3);
  CHECK_THAT(result.err, Contains("first seen in"));
}

TEST_CASE("without data it trains on the text that ships with it and ends with a sample") {
  const Work work;
  const std::string out =
      run_well("train_gpt2", {"--steps", "1", "--batch-size", "1", "--threads", "1", "--output",
                              work.at("out"), "--sample-tokens", "8", "--prompt", "The "});
  CHECK_THAT(out, Contains("sample ") && Contains("The ") && Contains("generate --model"));
  CHECK_THAT(run_well("generate",
                      {"--model", work.at("out/model"), "--prompt", "The ", "--max-tokens", "5"}),
             StartsWith("The "));
}

TEST_CASE("prepare_data, train_gpt2 and generate work on each other's files") {
  const Work work;
  const std::string text = verse(400);
  write_file(work.path() / "poem.txt", text);
  const std::string kind = GENERATE("bytes", "chars");
  CHECK_THAT(run_well("prepare_data", {"--input", work.at("poem.txt"), "--tokenizer", kind,
                                       "--output", work.at("data")}),
             Contains("(" + kind + ")"));
  const auto tokenizer = load_tokenizer(work.path() / "data");
  std::string decoded;
  for (const char* part : {"train.bin", "val.bin"}) {
    const TokenFile file(work.path() / "data" / part);
    std::vector<std::int32_t> ids(file.size());
    file.read(0, ids);
    decoded += tokenizer->decode(ids);
  }
  CHECK(decoded == text);
  auto flags = work.train("out", {"--data", work.at("data")});
  const auto vocabulary = std::find(flags.begin(), flags.end(), "--vocab-size");
  flags.erase(vocabulary, vocabulary + 2);
  CHECK_THAT(run_well("train_gpt2", flags), Contains("validation"));
  const Arguments generate{
      "--model", work.at("out/model"), "--prompt", "line 3", "--max-tokens", "20", "--seed", "4"};
  const std::string made = run_well("generate", generate);
  CHECK(made.rfind("line 3", 0) == 0);
  auto again = generate;
  again.push_back("--no-cache");
  CHECK(run_well("generate", again) == made);
  again = generate;
  again.back() = "5";
  const std::string other = run_well("generate", again);
  CHECK(other != made);

  // Two continuations: those of this seed and of the next, under a line between them.
  again = generate;
  again.insert(again.end(), {"--num", "2"});
  CHECK(run_well("generate", again) == made + "\n---\n" + other);

  const auto stop =
      std::find_if(made.begin() + 8, made.end() - 1, [](char c) { return c >= ' ' && c <= '~'; });
  if (stop == made.end() - 1) return;  // a bytes model of three steps may print none
  again = generate;
  again.insert(again.end(), {"--stop", std::string(1, *stop)});
  CHECK(run_well("generate", again) == made.substr(0, made.find(*stop, 6)) + "\n");
}

TEST_CASE("GPT-2 tokens of a long text: those of the reference, also when encoded in pieces") {
  for (const TokenizerData& data : tokenizer_data()) {
    INFO(data.folder.string());
    const Work work;
    const std::string text = work.at("text.txt"), folder = data.folder.string();
    write_file(text, data.text);
    CHECK_THAT(run_well("prepare_data", {"--input", text, "--tokenizer", "gpt2", "--tokenizer-dir",
                                         folder, "--encode-only", work.at("all.bin")}),
               Contains(std::to_string(data.tokens) + " tokens"));
    const TokenFile file(work.path() / "all.bin");
    std::vector<std::int32_t> ids(file.size());
    file.read(0, ids);
    CHECK(ids == load_tokenizer(folder)->encode(data.text));
    const std::string sum = "/usr/bin/sha256sum";
    if (fs::exists(sum)) CHECK_THAT(run_well(sum, {work.at("all.bin")}), Contains(data.sha256));
    run_well("prepare_data", {"--input", text, "--tokenizer", "gpt2", "--tokenizer-dir", folder,
                              "--output", work.at("data")});
    CHECK(TokenFile(work.path() / "data" / "train.bin").size() == data.train_tokens);
    CHECK(TokenFile(work.path() / "data" / "val.bin").size() == data.val_tokens);
  }
}

TEST_CASE("converting to BF16 and back rounds once") {
  const Work work;
  write_model(work.path() / "f32");
  const auto convert = [&](const std::string& from, const std::string& to, const char* type) {
    run_well("convert", {"--input", work.at(from), "--output", work.at(to), "--dtype", type});
    return work.bytes(to + "/model.safetensors");
  };
  const std::string narrow = convert("f32", "bf16", "bf16");
  convert("bf16", "back", "f32");
  CHECK(convert("back", "bf16again", "bf16") == narrow);
  // The header names the writer, by which convert knows the file.
  const std::string same = convert("f32", "same", "f32");
  const std::string given = work.bytes("f32/model.safetensors");
  const auto data_of = [](const std::string& file) {
    return file.substr(file.find("}}") + 2 + (8 - (file.find("}}") + 2) % 8) % 8);
  };
  CHECK((data_of(same) == data_of(given)));
  CHECK((convert("same", "again", "f32") == same));
  const auto dtype = [&](const std::string& name) {
    return Json::parse(work.bytes(name + "/config.json")).at("torch_dtype");
  };
  CHECK(dtype("bf16") == "bfloat16");
  CHECK(dtype("same") == "float32");
  convert("f32", "f16", "f16");
  CHECK(dtype("f16") == "float16");
  const auto read = [&](const std::string& name) {
    return floats(work.path() / name / "model.safetensors", "h.1.mlp.c_fc.weight");
  };
  const Values before = read("f32"), after = read("back");
  CHECK(before != after);
  for (std::size_t i = 0; i < before.size(); ++i)
    REQUIRE(std::abs(after[i] - before[i]) <= std::abs(before[i]) / 256);
  run_well("convert", {"--input", work.at("f32"), "--output", work.at("short"), "--context", "5"});
  CHECK(floats(work.path() / "short" / "model.safetensors", "wpe.weight").size() == 5 * 16);
}

TEST_CASE("probe writes the reference's logits, loss and gradients") {
  const Work work;
  const std::string name = GENERATE("tiny", "odd");
  const std::string folder = GENERATE(from_range(fixture_folders()));
  const Fixture fixture(folder, name);
  run_well("probe", {"--model", fixture.model().string(), "--tokens", fixture.token_file().string(),
                     "--batch", std::to_string(fixture.hyper("batch")), "--seq",
                     std::to_string(fixture.hyper("seq")), "--dump", work.at("dump")});
  const SafetensorsReader reader(work.path() / "dump");
  const Values logits = floats(work.path() / "dump", "logits");
  const Values expected = fixture.values("logits");
  REQUIRE(logits.size() == expected.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    REQUIRE(std::abs(logits[i] - expected[i]) <= 2e-5);
  CHECK(floats(work.path() / "dump", "loss").at(0) ==
        Approx(fixture.json().at("loss").get<double>()).margin(1e-5));
  std::size_t gradients = 0;
  for (const auto& tensor : reader.tensors()) {
    if (tensor.name.rfind("grad.", 0) != 0) continue;
    ++gradients;
    INFO(tensor.name);
    CHECK(relative_l2(floats(work.path() / "dump", tensor.name), fixture.values(tensor.name)) <=
          1e-5);
  }
  CHECK(gradients == fixture.json().at("final_params").size());
}

TEST_CASE("generate continues token ids as the reference does") {
  const Work work;
  write_model(work.path() / "model");
  const Arguments greedy{"--model", work.at("model"), "--tokens", "1 2 3", "--temperature",
                         "0",       "--max-tokens",   "40"};
  const std::string made = run_well("generate", greedy);
  CHECK(std::count(made.begin(), made.end(), ' ') == 39);
  auto again = greedy;
  again.push_back("--no-cache");
  CHECK(run_well("generate", again) == made);

  const std::string folder = GENERATE(from_range(fixture_folders()));
  const Fixture fixture(folder, "tiny");
  const auto join = [](const Json& ids) {
    std::string text;
    for (const auto& id : ids)
      text += (text.empty() ? "" : " ") + id.dump();
    return text;
  };
  const Json& reference = fixture.json().at("greedy");
  CHECK(run_well("generate",
                 {"--model", fixture.model().string(), "--tokens", join(reference.at("prompt")),
                  "--max-tokens", "16", "--temperature", "0"}) == join(reference.at("ids")) + "\n");
}

}  // namespace sluice::test::programs_test
