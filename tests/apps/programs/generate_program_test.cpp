#include <nlohmann/json.hpp>
#include <regex>

#include "tests/support/catch.h"
#include "tests/support/gguf_model.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// Tests which models `generate` accepts, and which tokens it and a training's samples draw.

namespace sluice::test::generate_program_test {
namespace {

std::string verse(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i)
    text += "line " + std::to_string(i) + " of a poem, \xC3\xA4\xC3\xB6\xC3\xBC\n";
  return text;
}

struct Run : TempDir {
  explicit Run(const std::string& more) {
    write_file(path() / "poem.txt", verse(100));
    const Arguments flags = words(
        "--n-layer 1 --n-head 2 --n-embd 16 --context 16 --batch-size 4 --threads 1 --steps 3 "
        "--sample-tokens 40 --data " +
        at("poem.txt") + " --output " + at("run") + " " + more);
    run_well("train_gpt2", flags);
  }

  std::string at(const std::string& name) const { return (path() / name).string(); }
  std::string checkpoint() const { return at("run/checkpoints/step-00000003"); }
  static Arguments flags(const std::string& model, const std::string& more) {
    return words("--prompt line --max-tokens 60 --seed 4 --model " + model + " " + more);
  }
  std::string made(const std::string& model, const std::string& more = {}) const {
    return run_well("generate", flags(model, more));
  }
  void refused(const std::string& model, int code, const std::string& word) const {
    const ProgramResult result = run_program("generate", flags(model, {}));
    INFO(result.err);
    CHECK(result.exit_code == code);
    CHECK_THAT(result.err, Contains(word));
  }
};

}  // namespace

TEST_CASE("generate reads a run's folder and its checkpoints as it reads the model") {
  const Run run("--tokenizer chars --save-every 2 --keep 2");
  const std::string expected = run.made(run.at("run/model"));
  CHECK(run.made(run.at("run")) == expected);
  CHECK(run.made(run.checkpoint()) == expected);
  CHECK(run.made(run.checkpoint() + "/") == expected);

  // As after a run that was stopped: the newest checkpoint counts, with the run's tokenizer.
  fs::rename(run.at("run/model"), run.at("exported"));
  CHECK(run.made(run.at("run")) == expected);
  CHECK(run.made(run.checkpoint()) == expected);
  fs::rename(run.checkpoint(), run.at("elsewhere"));
  CHECK(run.made(run.at("run")) == run.made(run.at("run/checkpoints/step-00000002")));
  run.refused(run.at("elsewhere"), 2, "--tokenizer-dir");
  CHECK(run.made(run.at("elsewhere"), "--tokenizer-dir " + run.at("exported")) == expected);
  fs::rename(run.at("elsewhere"), run.checkpoint());

  fs::remove_all(run.at("run/tokenizer"));
  run.refused(run.at("run"), 2, "--tokenizer-dir");
  CHECK(run.made(run.at("run"), "--tokenizer-dir " + run.at("exported")) == expected);

  const fs::path weights = fs::path(run.checkpoint()) / "weights.safetensors";
  std::string bytes = read_file(weights);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(weights, bytes);
  run.refused(run.checkpoint(), 1, "damaged");
  fs::remove_all(run.at("run/checkpoints"));
  run.refused(run.at("run"), 2, "is no model");
}

TEST_CASE("a model with more tokens than its tokenizer says only what the tokenizer knows") {
  const Run run("--tokenizer bytes --vocab-size 5000 --sample-every 1");
  const std::string log = read_file(run.at("run/log.jsonl"));
  CHECK_THAT(log, Contains("\"event\":\"sample\"") && !Contains("\"event\":\"warning\""));
  const std::string made = run.made(run.at("run"), "--temperature 2");
  CHECK(made.size() == std::string("line").size() + 60 + 1);
  // Bytes need no text: any file of the run but the weights may be gone.
  fs::remove_all(run.at("run/model"));
  fs::remove(run.at("poem.txt"));
  CHECK(run.made(run.at("run"), "--temperature 2") == made);
}

TEST_CASE("convert makes a model folder of a GGUF file, which generates and trains") {
  const TempDir dir;
  const auto at = [&](const char* name) { return (dir.path() / name).string(); };
  GgufFile file = small_gguf();
  write_file(at("model.gguf"), file.bytes());
  CHECK_THAT(run_well("convert", {"--input", at("model.gguf"), "--output", at("folder")}),
             Contains("parameters written to"));
  CHECK_THAT(run_well("generate", words("--prompt ab12 --max-tokens 8 --temperature 0 --model " +
                                        at("folder"))),
             StartsWith("ab12"));
  write_file(at("poem.txt"), verse(60));
  run_well("train_gpt2",
           words("--steps 2 --batch-size 2 --threads 1 --sample-tokens 4 --model " + at("folder") +
                 " --data " + at("poem.txt") + " --output " + at("run")));
  CHECK(read_file(at("run/model/tokenizer.json")) == read_file(at("folder/tokenizer.json")));
  CHECK_THAT(read_file(at("run/model/config.json")), Contains("\"eos_token_id\": 257"));

  // A tokenizer that is not read costs a warning alone.
  file.keys[file.keys.size() - 6].value = GgufFile::text_of("llama");
  write_file(at("other.gguf"), file.bytes());
  CHECK_THAT(run_well("convert", {"--input", at("other.gguf"), "--output", at("bare")}),
             Contains("a tokenizer of kind \"llama\"") && Contains("works on ids"));
  CHECK_FALSE(fs::exists(at("bare/tokenizer.json")));
  write_file(at("cut.gguf"), file.bytes().substr(0, 4000));
  const ProgramResult cut =
      run_program("convert", {"--input", at("cut.gguf"), "--output", at("none")});
  CHECK(cut.exit_code == 2);
  CHECK_THAT(cut.err, Contains("cut.gguf"));
}

TEST_CASE("generate makes the same text with weights that visit the GPU") {
  if (!have_gpu()) return;
  const TempDir folder;
  write_file(folder.path() / "poem.txt", verse(100));
  run_well("train_gpt2", words("--n-layer 4 --n-head 2 --n-embd 64 --context 16 --batch-size 4 "
                               "--threads 1 --steps 1 --sample-tokens 0 --tokenizer chars --data " +
                               (folder.path() / "poem.txt").string() + " --output " +
                               (folder.path() / "run").string()));
  const auto made = [&](const std::string& more) {
    return run_program("generate", Run::flags((folder.path() / "run").string(),
                                              "--device cuda --gpu-memory " + more));
  };
  const ProgramResult whole = made("1GiB"), refused = made("1MiB");
  CHECK(whole.exit_code == 0);
  CHECK(whole.err == "");
  CHECK(refused.exit_code == 2);
  std::smatch bytes;
  REQUIRE(std::regex_search(refused.err, bytes, std::regex("takes ([0-9]+) bytes of GPU memory")));
  const ProgramResult visiting = made(bytes[1]);
  CHECK(visiting.exit_code == 0);
  CHECK(visiting.out == whole.out);
  CHECK_THAT(visiting.err, Contains("weights of 4 of 4 blocks rest in host memory"));
  CHECK_THAT(run_program("generate", Run::flags((folder.path() / "run").string(),
                                                "--device cpu --gpu-memory 1GiB"))
                 .err,
             Contains("--gpu-memory"));
}

TEST_CASE("generate continues each of many prompts as it continues that one alone") {
  const Run run("--tokenizer bytes");
  const std::vector<std::string> prompts{"line 7",
                                         "a poem that is longer than the context, \xC3\xA4", "x"};
  std::string lines, objects;
  for (const std::string& prompt : prompts) {
    lines += prompt + "\r\n\n";
    objects += nlohmann::json{{"prompt", prompt}, {"completion", "unused"}}.dump() + "\n";
  }
  write_file(run.at("p.txt"), lines);
  write_file(run.at("p.jsonl"), objects + "{\"prompt\":\"\"}\n");
  for (const std::string more : {"--temperature 0", "--seed 3 --top-k 20 --num 2"}) {
    const Arguments same = words("--max-tokens 12 --model " + run.at("run/model") + " " + more);
    const auto with = [&](Arguments flags) {
      flags.insert(flags.end(), same.begin(), same.end());
      return run_program("generate", flags);
    };
    std::string expected;
    for (const std::string& prompt : prompts) {
      const std::string text = with({"--prompt", prompt}).out;
      for (std::size_t at = 0; at != text.npos;) {
        const std::size_t end = text.find("\n---\n", at);
        const std::string one = text.substr(at, end - at);
        const std::string made = one.substr(prompt.size(), one.find_last_of('\n') - prompt.size());
        expected += nlohmann::ordered_json{{"prompt", prompt}, {"completion", made}}.dump(
                        -1, ' ', false, nlohmann::json::error_handler_t::replace) +
                    "\n";
        at = end == text.npos ? end : end + 5;
      }
    }
    CHECK(with({"--prompts", run.at("p.txt")}).out == expected);
    const ProgramResult objects_of = with({"--prompts", run.at("p.jsonl")});
    CHECK(objects_of.out == expected);
    CHECK_THAT(objects_of.err, Contains("1 line with an empty text"));
  }
  const auto refused = [&](const std::string& flags) {
    const ProgramResult result =
        run_program("generate", words("--model " + run.at("run/model") + " " + flags));
    CHECK(result.exit_code == 2);
    return result.err;
  };
  write_file(run.at("none.txt"), "\n\n");
  CHECK_THAT(refused("--prompts " + run.at("none.txt")), Contains("no line has a text"));
  CHECK_THAT(refused("--prompts " + run.at("absent.txt")), Contains("absent.txt"));
  CHECK_THAT(refused("--prompt x --prompts " + run.at("p.txt")), Contains("--prompts alone"));
}

}  // namespace sluice::test::generate_program_test
