#include <nlohmann/json.hpp>

#include "models/text/bpe/bpe_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text_files.h"

// Files that the programs must not overwrite (row 8 of what a run may touch), and files for which
// they must not take memory (row 15): refused with exit code 2, one line, and nothing changed.

namespace sluice::test::user_files_test {
namespace {

/// A user's folder.
struct Desk : TempDir {
  Desk() {
    write_model(path() / "raw");
    // convert knows the model as its own.
    CHECK(run("convert --input raw --output model").exit_code == 0);
    fs::remove_all(path() / "raw");
    write_tokens(path() / "t.bin", 200, 64);
    put("text.txt", std::string(3000, 'a') + "\n");
    put("settings.toml", "steps=1\n");
    tokenizer_with_end().save(path() / "gpt2");
    fs::create_symlink("text.txt", path() / "link");
    fs::create_hard_link(path() / "text.txt", path() / "hard");
    fs::create_directory_symlink("model", path() / "same");
  }

  void put(const std::string& name, const std::string& text) const {
    fs::create_directories((path() / name).parent_path());
    write_file(path() / name, text);
  }
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(path()))
      all[entry.path().string()] = entry.is_regular_file() ? read_file(entry.path()) : "";
    return all;
  }
  ProgramResult run(const std::string& command) const {
    const Arguments all = words(command);
    return run_program(all.front(), {all.begin() + 1, all.end()}, {}, path());
  }
  void refused(const std::string& command, const std::string& word) const {
    INFO(command);
    const auto before = files();
    const ProgramResult result = run(command);
    CHECK(result.exit_code == 2);
    CHECK(count_lines(result.err) == 1);
    CHECK_THAT(result.err, Contains(word) && Contains("give another"));
    CHECK((files() == before));
  }
};

}  // namespace

TEST_CASE("no program writes over what it reads, or over a file of another kind", "[files]") {
  const Desk desk;
  const std::string text = "prepare_data --input text.txt ";
  desk.refused(text + "--encode-only text.txt", "text.txt");
  desk.refused(text + "--encode-only link", "link");
  desk.refused(text + "--encode-only hard", "hard");
  desk.refused("prepare_data --input link --encode-only ./text.txt", "text.txt");
  desk.refused(text + "--tokenizer gpt2 --tokenizer-dir gpt2 --encode-only gpt2/merges.txt",
               "merges.txt");
  desk.refused(text + "--tokenizer gpt2 --tokenizer-dir gpt2 --output gpt2", "gpt2/");
  desk.put("chars/chars.json", "some text\n");
  desk.refused("prepare_data --input chars/chars.json --tokenizer chars --output chars",
               "chars.json");
  desk.put("nanogpt/train.bin", "ab");
  desk.refused(text + "--output nanogpt", "nanogpt/train.bin was not written by prepare_data");

  const std::string train =
      "train_gpt2 --model model --data t.bin --output out --steps 1 --batch-size 2 --threads 1 "
      "--sample-tokens 0 ";
  for (const std::string file :
       {"t.bin", "text.txt", "link", "model/config.json", "model/model.safetensors",
        "gpt2/merges.txt", "settings.toml --config settings.toml"})
    desk.refused(
        (file.starts_with("settings") ? "train_gpt2 --data text.txt --output out" : train) +
            " --trace " + file,
        "--trace " + file.substr(0, file.find(' ')));
  desk.refused(train + "--trace model", "--trace model is a folder");

  const std::string probe = "probe --model model --tokens t.bin --dump ";
  for (const std::string file : {"t.bin", "model/model.safetensors", "text.txt", "hard"})
    desk.refused(probe + file, "--dump " + file);

  for (const std::string output : {"model/sub", "./model/sub", ".", "model/.."})
    desk.refused("convert --input model --output " + output, "would overwrite model");
  desk.refused("convert --input model --output model/", "--output is the --input folder");
  desk.refused("convert --input model --output same", "--output is the --input folder");
  desk.refused("convert --input same --output model", "--output is the --input folder");
  desk.refused("convert --input model --output same/deeper", "would overwrite");
  // A folder of links into the output, as a cache of downloads has them.
  fs::create_directory(desk.path() / "cache");
  for (const char* const name : {"config.json", "model.safetensors"})
    fs::create_symlink("../model/" + std::string(name), desk.path() / "cache" / name);
  desk.refused("convert --input cache --output model", "would overwrite cache/");
}

TEST_CASE("what a program has written itself, or nobody, it may write again", "[files]") {
  const Desk desk;
  desk.put("empty", "");
  desk.put("empty too", "");
  const std::string train =
      "train_gpt2 --model model --data t.bin --steps 1 --batch-size 2 --threads 1 "
      "--sample-tokens 0 --output ";
  const std::string commands[] = {train + "out1 --trace trace.json",
                                  train + "out2 --trace trace.json",
                                  train + "out3 --trace empty",
                                  "probe --model model --tokens t.bin --dump dump",
                                  "probe --model model --tokens t.bin --dump dump",
                                  "prepare_data --input text.txt --output data",
                                  "prepare_data --input text.txt --output data",
                                  "prepare_data --input text.txt --encode-only all.bin",
                                  "convert --input model --output copy",
                                  "convert --input model --output copy"};
  for (const std::string& command : commands) {
    INFO(command);
    const ProgramResult result = desk.run(command);
    CHECK(result.err == "");
    CHECK(result.exit_code == 0);
  }
  desk.refused("prepare_data --input text.txt --encode-only all.bin",
               "all.bin is there already, and this format has no mark");
  // An old trace as the text of a run, and as its trace: it is read.
  desk.refused("train_gpt2 --data trace.json --output out --trace ./trace.json",
               "--trace would overwrite ./trace.json");
}

TEST_CASE("a model is compared with its configuration before memory is taken for it", "[files]") {
#ifdef __SANITIZE_ADDRESS__
  skip("AddressSanitizer takes terabytes of addresses for itself");
#else
  const Desk desk;
  const auto config = desk.path() / "model" / "config.json";
  const auto good = nlohmann::json::parse(read_file(config));
  struct Claim {
    const char *key, *word;
    std::int64_t value;
  };
  for (const auto& [key, word, value] :
       {Claim{"n_inner", "\"h.0.mlp.c_fc.weight\" has shape", 1 << 24},
        Claim{"vocab_size", "\"wte.weight\" has shape", 1 << 24},
        Claim{"n_positions", "\"wpe.weight\" has shape", 1 << 24},
        Claim{"n_layer", "is missing (the configuration has 16384 layers)", 1 << 14}}) {
    auto claim = good;
    claim[key] = value;
    write_file(config, claim.dump());
    for (const std::string command :
         {"generate --model model --tokens 1", "evaluate --model model --data t.bin",
          "probe --model model --tokens t.bin", "convert --input model --output out",
          "train_gpt2 --model model --data t.bin --output out --batch-size 2 --sample-tokens 0"}) {
      INFO(command << " with " << key << " " << value);
      // Enough for a program with the threads of many cores, not for the first of the claims.
      const ProgramResult result =
          run_program("/bin/sh", {"-c", "ulimit -v 3000000; exec " SLUICE_BIN_DIR "/" + command},
                      {}, desk.path());
      CHECK(result.exit_code == 2);
      CHECK_THAT(result.err, Contains(word));
      CHECK_FALSE(fs::exists(desk.path() / "out"));
    }
  }
#endif
}

TEST_CASE("a tokenizer of the model's that is not read does not stop work on ids", "[files]") {
  const Desk desk;
  desk.put("model/tokenizer.json", R"({"model": {"type": "Unigram"}})");
  const std::string train =
      "train_gpt2 --model model --steps 1 --batch-size 2 --threads 1 --output out --data ";
  for (const std::string& command :
       {train + "t.bin", std::string("evaluate --model model --data t.bin"),
        std::string("convert --input model --output copy")}) {
    INFO(command);
    const ProgramResult result = desk.run(command);
    CHECK(result.exit_code == 0);
    CHECK_THAT(result.out, Contains("tokenizer.json is no tokenizer that this program reads") &&
                               Contains("this works on ids, without a tokenizer"));
  }
  const ProgramResult text = desk.run("train_gpt2 --model model --output other --data text.txt");
  CHECK(text.exit_code == 2);
  CHECK_THAT(text.err, Contains("error: ") &&
                           Contains("tokenizer.json is no tokenizer that this program reads"));
}

}  // namespace sluice::test::user_files_test
