#include <nlohmann/json.hpp>

#include "apps/data/special_names.h"
#include "apps/data/tokens/prepared_folder.h"
#include "models/text/bpe/byte_alphabet.h"
#include "models/text/byte_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/text_files.h"

// A folder of tokens tells which tokenizer made it, and text tells of a --special that was
// forgotten.

namespace sluice::test::made_with_test {
namespace {

using nlohmann::json;

/// The bytes, "ab", and the special tokens <|endoftext|> and <|end|>, as tokenizer.json.
json tokenizer_json(bool other = false) {
  json vocabulary;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[to_byte_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  const std::string pair = other ? "bc" : "ab";
  vocabulary[pair] = 256;
  json added = json::array();
  for (const std::string name : {"<|endoftext|>", "<|end|>"})
    added.push_back({{"id", 257 + added.size()}, {"content", name}, {"special", true}});
  return {{"model",
           {{"type", "BPE"},
            {"vocab", vocabulary},
            {"merges", {pair.substr(0, 1) + " " + pair.substr(1)}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"added_tokens", added}};
}

/// Models of bytes and of a BPE, both of 259 tokens, and a text.
struct Work : TempDir {
  Work() {
    DecoderConfig config = small_config();
    config.vocab_size = 259;
    for (const char* name : {"bytes", "bpe", "none"})
      write_model(path() / name, config);
    ByteTokenizer().save(path() / "bytes");
    write_file(path() / "bpe/tokenizer.json", tokenizer_json().dump());
    std::string text;
    for (int i = 0; i < 200; ++i)
      text += "abc number " + std::to_string(i) + "\n";
    write_file(path() / "text.txt", text);
    well("prepare_data", "--input text.txt --tokenizer bytes --output of-bytes");
    well("prepare_data", "--input text.txt --tokenizer-dir bpe --output of-bpe");
  }

  ProgramResult run(const std::string& program, const std::string& flags) const {
    return run_program(program, words(flags), "", path());
  }
  std::string well(const std::string& program, const std::string& flags) const {
    const ProgramResult result = run(program, flags);
    INFO(flags << "\n" << result.err);
    REQUIRE(result.exit_code == 0);
    return result.out;
  }
  std::string refused(const std::string& program, const std::string& flags) const {
    const ProgramResult result = run(program, flags);
    INFO(program << " " << flags);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(result.err.size() <= 300);
    return result.err;
  }
};

const std::string train =
    " --steps 1 --batch-size 2 --device cpu --threads 1 --val-every 0 --save never --sample-tokens "
    "0 "
    "--output out";

}  // namespace

TEST_CASE("a folder of another tokenizer's tokens is refused by every program", "[data]") {
  const Work work;
  const json description = json::parse(read_file(work.path() / "of-bpe/prepared.json"));
  CHECK(description.at("tokenizer").at("kind") == "bpe");
  CHECK(description.at("tokenizer").at("tokens") == 259);
  CHECK(description.at("tokenizer").at("hash").get<std::string>().size() == 16);
  // An older version wrote no description, but the same tokenizer.
  for (const bool older : {false, true}) {
    CAPTURE(older);
    if (older)
      for (const char* folder : {"of-bytes", "of-bpe"})
        fs::remove(work.path() / folder / "prepared.json");
    for (const auto& [model, data, made, has] :
         {std::tuple("bpe", "of-bytes", "bytes tokenizer (256 tokens", "bpe tokenizer (259 tokens"),
          std::tuple("bytes", "of-bpe", "bpe tokenizer (259 tokens", "bytes tokenizer (256")}) {
      const std::string name = model, folder = data;
      for (const std::string file : {"", "/train.bin"})
        CHECK_THAT(
            work.refused("train_gpt2", "--model " + name + " --data " + folder + file + train),
            StartsWith("train_gpt2: error: --data " + folder + ": ") && Contains(made) &&
                Contains("--model " + name + " has a " + has));
      for (const std::string command :
           {"evaluate --data ", "plan --batch-size 2 --data ",
            "plan --batch-size 2 --device-profile A100 --data ",
            "plan --batch-size 2 --device-profile A100 --gpus 2 --data "}) {
        const std::string program = command.substr(0, command.find(' '));
        CHECK_THAT(work.refused(program, command.substr(command.find(' ') + 1) + folder +
                                             " --model " + name),
                   Contains(": error: --data " + folder + ":") && Contains(made) && Contains(has));
      }
      CHECK_THAT(work.refused("train_gpt2",
                              "--model " + name + " --data text.txt --val-data " + folder + train),
                 Contains("--val-data " + folder));
      CHECK_THAT(work.refused("probe", "--model " + name + " --tokens " + folder + "/val.bin"),
                 Contains("--tokens " + folder) && Contains(made));
    }
    work.well("train_gpt2", "--model bpe --data of-bpe" + train);
    CHECK_THAT(work.well("evaluate", "--model bytes --data of-bytes"), Contains("bits/byte"));
    // A model without a tokenizer, and a new one, take the folder's.
    work.well("train_gpt2", "--model none --data of-bytes" + train);
    CHECK_THAT(work.well("train_gpt2", "--n-layer 1 --context 16 --data of-bpe" + train),
               Contains("(bpe)"));
    CHECK_THAT(
        work.refused("train_gpt2", "--model bpe --tokenizer-dir bytes --data of-bpe" + train),
        Contains("--tokenizer-dir bytes has a bytes tokenizer"));
  }
}

TEST_CASE("the description of a folder is believed before the tokenizer beside it", "[data]") {
  const Work work;
  write_file(work.path() / "of-bpe/tokenizer.json", tokenizer_json(true).dump());
  CHECK_THAT(work.refused("train_gpt2", "--n-layer 1 --context 16 --data of-bpe" + train),
             Contains("--data of-bpe: its ids are of a bpe tokenizer") &&
                 Contains("and --data of-bpe has a bpe tokenizer"));
  work.well("train_gpt2", "--model bpe --data of-bpe" + train);
  write_file(work.path() / "of-bpe/prepared.json", R"({"tokenizer": {"kind": "bpe"}})");
  CHECK_THAT(work.refused("evaluate", "--model bpe --data of-bpe"),
             Contains("of-bpe/prepared.json: \"tokenizer\" is {"));
  // It is replaced with the tokens.
  work.well("prepare_data", "--input text.txt --tokenizer-dir bpe --output of-bpe");
  work.well("evaluate", "--model bpe --data of-bpe");
}

TEST_CASE("a checkpoint's tokenizer is that of its run", "[data]") {
  const Work work;
  work.well("train_gpt2",
            "--n-layer 1 --context 16 --data of-bpe --steps 1 --batch-size 2 --device cpu "
            "--threads 1 --val-every 0 --sample-tokens 0 --output run");
  const std::string checkpoint = "--model run/checkpoints/step-00000001";
  CHECK_THAT(work.well("evaluate", checkpoint + " --data of-bpe"), Contains("bits/byte"));
  CHECK_THAT(work.refused("evaluate", checkpoint + " --data of-bytes"),
             Contains("has a bpe tokenizer (259 tokens"));
}

TEST_CASE("names of special tokens in text are told where --special is forgotten", "[data]") {
  const Work work;
  std::string text;
  for (int i = 0; i < 30; ++i)
    text += "abc " + std::to_string(i) + "<|end|>\n";
  write_file(work.path() / "chat.txt", text + "<|endoftext|>");
  const std::string said =
      "the text has the name of the special token \"<|end|>\" 30 times, and other such names 1, "
      "and it is encoded as plain text; with --special, for a training of prepare_data, it becomes "
      "that token";
  const auto all = [&](const std::string& program, const std::string& flags) {
    fs::remove(work.path() / "out.bin");  // which has no mark to be replaced by
    const ProgramResult result = work.run(program, flags);
    INFO(result.err);
    CHECK(result.exit_code == 0);
    return result.out + result.err;
  };
  const std::string commands[][2] = {
      {"train_gpt2", "--data --model bpe" + train},
      {"evaluate", "--data --model bpe"},
      {"plan", "--data --model bpe --batch-size 2"},
      {"prepare_data", "--input --tokenizer-dir bpe --encode-only out.bin"}};
  for (const auto& [program, command] : commands) {
    CAPTURE(program);
    const auto space = command.find(' ');
    const std::string flags = command.substr(0, space) + " chat.txt" + command.substr(space);
    CHECK_THAT(all(program, flags), Contains(command.substr(0, space) + ": " + said));
    if (program == "evaluate" || program == "prepare_data")
      CHECK_THAT(all(program, flags + " --special"), !Contains("the name of the special token"));
    fs::remove(work.path() / "out.bin");
  }
  const std::string generate = "--model bpe --max-tokens 1 --prompt a<|end|>";
  CHECK_THAT(all("generate", generate), Contains("--prompt: the text has the name"));
  CHECK_THAT(all("generate", generate + " --special"), !Contains("the name of"));
}

TEST_CASE("a few names in a long text are no reason for a word", "[data]") {
  const BpeTokenizer tokenizer = tokenizer_with_end();
  const auto warned = [&](int names, std::size_t bytes, bool special = false) {
    SpecialNames counted(tokenizer, special);
    counted.look_at(std::string(bytes, 'a'));
    for (int i = 0; i < names; ++i)
      counted.look_at("<|endoftext|>");
    return counted.sentence("--data");
  };
  CHECK(warned(9, 100'000) == "");
  CHECK(warned(0, 10) == "");
  CHECK(warned(10, 100'000, true) == "");
  CHECK_THAT(warned(10, 100'000), StartsWith("--data: ") && Contains("\"<|endoftext|>\" 10 times"));
  CHECK_THAT(warned(1, 900), Contains("\"<|endoftext|>\" 1 time,"));
  CHECK(warned(1, 1100) == "");
}

}  // namespace sluice::test::made_with_test
