#include <sstream>

#include <nlohmann/json.hpp>

#include "models/text/byte_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// What programs do with keys of a model's config.json and generation_config.json that no logits
// show.

namespace sluice::test::model_keys_test {
namespace {

using Json = nlohmann::json;

/// A Mistral with a context of 64 and a window of 16 that reads bytes, and a text.
struct MistralFolder : TempDir {
  explicit MistralFolder(const Json& keys = Json::object()) {
    DecoderConfig config = config_of(Family::mistral);
    config.n_layer = 2;
    config.n_head = 2;
    config.n_embd = 16;
    config.n_inner = 24;
    config.vocab_size = 256;
    config.n_positions = 64;
    write_model(model(), config);
    ByteTokenizer().save(model());
    Json json = Json::parse(read_file(model() / "config.json"));
    json.update({{"sliding_window", 16}});
    json.update(keys);
    write_file(model() / "config.json", json.dump());
    std::string text;
    while (text.size() < 2000)
      text += "the quick brown fox\n";
    write_file(path() / "text.txt", text);
    write_file(path() / "ids.bin", std::string(200, '\0'));
  }
  fs::path model() const { return path() / "model"; }
  std::string text() const { return (path() / "text.txt").string(); }
  Json exported(const char* folder) const {
    return Json::parse(read_file(path() / folder / "config.json"));
  }
};

TEST_CASE("every program stops at a window and says so", "[model_keys]") {
  const MistralFolder work;
  const std::string model = work.model().string();
  const std::string longer =
      "is longer than the model's sliding window of 16, beyond which nothing "
      "is computed yet; give 16 at most";
  const auto refused = [&](const char* name, const Arguments& arguments) {
    const ProgramResult result = run_program(name, arguments);
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Contains(longer));
  };
  refused("evaluate", {"--model", model, "--data", work.text(), "--seq-len", "17"});
  refused("probe",
          {"--model", model, "--tokens", (work.path() / "ids.bin").string(), "--seq", "17"});
  refused("train_gpt2", {"--model", model, "--data", work.text(), "--seq-len", "17", "--steps", "1",
                         "--output", (work.path() / "run").string()});
  refused("plan", {"--model", model, "--data", work.text(), "--seq-len", "17"});
  const ProgramResult evaluated =
      run_program("evaluate", {"--model", model, "--data", work.text(), "--max-tokens", "64"});
  CHECK(evaluated.exit_code == 0);
  CHECK_THAT(evaluated.out, Contains("in 4 sequences of 16"));
  CHECK_THAT(evaluated.err, Contains("evaluate: note: attention sees 16 of the model's 64"));
  // A text that grows beyond the window is cut, and goes on.
  const ProgramResult made =
      run_program("generate", {"--model", model, "--prompt", "the quick brown", "--max-tokens",
                               "40", "--temperature", "0"});
  CHECK(made.exit_code == 0);
}

TEST_CASE("exports keep the keys that are not used", "[model_keys]") {
  const MistralFolder work({{"attention_dropout", 0.25}, {"our_key", "x"}, {"use_cache", false}});
  write_file(work.model() / "generation_config.json", "{\"eos_token_id\": 10}");
  const std::string model = work.model().string();
  run_program("convert", {"--input", model, "--output", (work.path() / "again").string()});
  const ProgramResult trained =
      run_program("train_gpt2", {"--model", model, "--data", work.text(), "--batch-size", "2",
                                 "--steps", "1", "--val-steps", "1", "--sample-every", "0",
                                 "--output", (work.path() / "run").string()});
  CHECK(trained.exit_code == 0);
  CHECK_THAT(trained.out, Contains("attention sees 16 of the model's 64 positions"));
  CHECK_THAT(trained.out, Contains("dropout      0 of tokens, 0.25 in attention, 0 of branches"));
  for (const char* const folder : {"again", "run/model"}) {
    INFO(folder);
    const Json json = work.exported(folder);
    CHECK(json.at("sliding_window") == 16);
    CHECK(json.at("max_position_embeddings") == 64);
    CHECK(json.at("attention_dropout") == 0.25);
    CHECK(json.at("our_key") == "x");
    CHECK(json.at("use_cache") == false);
    CHECK(read_file(work.path() / folder / "generation_config.json") == "{\"eos_token_id\": 10}");
  }
}

TEST_CASE("dropout is the model's unless a flag says another", "[model_keys]") {
  const MistralFolder work(Json{{"attention_dropout", 0.5}});
  const auto loss = [&](const Arguments& flags, const char* output) {
    Arguments arguments{"--model",        work.model().string(),
                        "--data",         work.text(),
                        "--batch-size",   "2",
                        "--steps",        "2",
                        "--lr-schedule",  "constant",
                        "--lr",           "0.01",
                        "--val-steps",    "1",
                        "--sample-every", "0",
                        "--output",       (work.path() / output).string()};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    CHECK(run_program("train_gpt2", arguments).exit_code == 0);
    std::istringstream log(read_file(work.path() / output / "log.jsonl"));
    double last = 0;
    for (std::string line; std::getline(log, line);)
      if (const Json event = Json::parse(line); event.value("event", "") == "train")
        last = event.at("loss");
    CHECK(last != 0);
    return last;
  };
  const double by_model = loss({}, "a");
  CHECK(loss({"--dropout", "0"}, "b") != by_model);
  CHECK(loss({"--dropout", "0.5"}, "c") != by_model);  // everywhere, and not in attention alone
  // A run that is started from its own configuration has the model's probabilities too.
  CHECK_THAT(read_file(work.path() / "a/config.toml"), !Contains("dropout=0"));
}

TEST_CASE("generate follows generation_config.json, and flags win", "[model_keys]") {
  const MistralFolder work(Json{{"sliding_window", nullptr}});
  const auto made = [&](const Json& json, const Arguments& flags) {
    write_file(work.model() / "generation_config.json", json.dump());
    Arguments arguments{"--model", work.model().string(), "--prompt", "abc"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return run_program("generate", arguments);
  };
  const Arguments greedy{"--temperature", "0", "--max-tokens", "6"};
  const std::string text = made(Json::object(), greedy).out;
  REQUIRE(text.size() > 5);
  // The first new byte ends the text.
  const int first = static_cast<unsigned char>(text[3]);
  CHECK(made({{"eos_token_id", first}}, greedy).out == "abc\n");
  CHECK(made({{"eos_token_id", {first, 7}}}, greedy).out == "abc\n");
  const ProgramResult taken = made({{"do_sample", false}, {"max_new_tokens", 6}}, {});
  CHECK(taken.out == text);
  CHECK_THAT(taken.err, Contains("gives --temperature 0 --top-k 50 --max-tokens 6; flags win"));
  CHECK(made({{"do_sample", true}, {"temperature", 5.0}, {"max_new_tokens", 2}}, greedy).out ==
        text);
  CHECK_THAT(made({{"repetition_penalty", 1.2}}, greedy).err,
             Contains("generation_config.json has repetition_penalty, which is not supported"));
}

}  // namespace
}  // namespace sluice::test::model_keys_test
