#include <nlohmann/json.hpp>

#include "apps/cli/shell_quote.h"
#include "models/text/byte_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// Where programs run and what their files are called: without a folder for temporary files, in a
// folder that is gone, beside names that a shell or a file cannot hold.

namespace sluice::test::places_test {
namespace {

const std::string shape =
    "--n-layer 1 --n-head 1 --n-embd 8 --context 16 --threads 1 --sample-tokens 0 --val-every 0 ";

struct Desk : TempDir {
  Desk() {
    DecoderConfig config = small_config();
    config.vocab_size = 256;
    config.n_positions = 64;
    write_model(path() / "model", config);
    ByteTokenizer().save(path() / "model");
    write_file(path() / "text.txt", std::string(3000, 'a') + "\n");
    write_file(path() / "prompts.txt", "one\ntwo\n");
    std::string lines;  // documents, of which some are drawn for validation
    for (int i = 0; i < 20; ++i)
      lines += "{\"text\": \"a document\"}\n";
    write_file(path() / "lines.jsonl", lines);
    write_tokens(path() / "t.bin", 300, 64);
  }

  /// Runs a shell's commands, in which $bin is the folder of the programs and $at this one.
  ProgramResult shell(const std::string& commands) const {
    return run_program("/bin/bash",
                       {"-c", "bin=" SLUICE_BIN_DIR " at=" + path().string() + "; " + commands}, {},
                       path());
  }
  void works(const std::string& commands) const {
    INFO(commands);
    const ProgramResult result = shell(commands);
    CHECK(result.err == "");
    CHECK(result.exit_code == 0);
  }
  Arguments train(const std::string& more) const {
    return words("--data text.txt " + shape + more);
  }
};

/// A command of each program, with whole paths.
std::vector<std::string> commands() {
  return {"train_gpt2 --data $at/text.txt --steps 1 --output $at/run " + shape,
          "train_gpt2 --data $at/text.txt --steps 2 --output $at/run --trace $at/trace " + shape,
          "train_gpt2 --data $at/text.txt --model $at/model --lora-rank 2 --steps 1 --threads 1 "
          "--sample-tokens 0 --batch-size 2 --seq-len 16 --output $at/lora",
          "evaluate --model $at/model --data $at/text.txt",
          "generate --model $at/model --prompt To --max-tokens 2",
          "generate --model $at/model --prompts $at/prompts.txt --max-tokens 2",
          "plan --data $at/text.txt " + shape,
          "plan --data $at/text.txt --batch-size 4 --pp 2 --schedule-svg $at/svg --n-layer 2",
          "probe --model $at/model --tokens $at/t.bin --dump $at/dump",
          "convert --input $at/model --output $at/copy",
          "convert --input $at/model --output $at/copy --dtype bf16",
          "prepare_data --input $at/text.txt --output $at/data",
          "train_mlp --steps 1 --threads 1 --output $at/mlp"};
}

const std::string odd = "caf\xe9";  // Latin-1

}  // namespace

TEST_CASE("what needs no folder for temporary files does not ask for one", "[places]") {
  const Desk desk;
  for (const std::string& command : commands())
    desk.works("TMPDIR=/nope $bin/" + command + " > /dev/null");
  // Input that can be read once is copied: beside the result, or to that folder.
  desk.works("TMPDIR=/nope $bin/prepare_data --input - --output once < text.txt > /dev/null");
  const ProgramResult result =
      desk.shell("TMPDIR=/nope $bin/evaluate --model model --data - < text.txt");
  CHECK(result.exit_code == 2);
  CHECK(result.err ==
        "evaluate: error: TMPDIR=/nope: there is no such folder, and input that can be read once "
        "is copied to it; name another, or write the input to a file first\n");
}

TEST_CASE("programs run in a folder that is gone, if all paths are whole", "[places]") {
  const Desk desk;
  for (const std::string& command : commands())
    desk.works("mkdir gone; cd gone; rmdir ../gone; $bin/" + command + " > /dev/null");
}

TEST_CASE("printed commands are what a shell reads back", "[places]") {
  for (const std::string text : {"a b", "it's", "line\nend", "tab\there", "$HOME `x` \"q\" \\",
                                 "caf\xe9", "caf\xc3\xa9", "\x01\x7f'\\", "*", "~", ""}) {
    INFO(text);
    const std::string written = quoted(text);
    CHECK(written.find('\n') == written.npos);
    CHECK(run_program("/bin/bash", {"-c", "printf %s " + written}).out == text);
  }
  CHECK(quoted("runs/a-1") == "runs/a-1");

  const Desk desk;
  const std::string name = "it's a\nrun";
  Arguments flags = desk.train("--steps 1 --output");
  flags.push_back(name);
  const std::string printed = run_program("train_gpt2", flags, {}, desk.path()).out;
  const auto at = printed.find("\nnext         ");
  REQUIRE(at != printed.npos);
  std::string next = printed.substr(at + 14);
  next = next.substr(0, next.find(" --prompt"));
  desk.works(next + " --prompt a --max-tokens 1 > /dev/null");

  // The command that a plan prints, with a name that a terminal cannot show.
  fs::copy(desk.path() / "text.txt", desk.path() / odd);
  Arguments plan = words(shape + "--steps 1 --output planned --data");
  plan.push_back(odd);
  const std::string planned = run_program("plan", plan, {}, desk.path()).out;
  const auto command = planned.find("\ncommand ");
  REQUIRE(command != planned.npos);
  const auto begin = planned.find("train_gpt2", command);
  desk.works("$bin/" + planned.substr(begin, planned.find('\n', begin) - begin) + " > /dev/null");
}

TEST_CASE("a name that a run's files could not hold is refused before the run", "[places]") {
  const Desk desk;
  const auto refused = [&](const std::string& program, const std::string& flags,
                           const std::string& words_of_it) {
    Arguments all = words(flags);
    all.push_back(odd);
    INFO(program << " " << flags);
    const ProgramResult result = run_program(program, all, {}, desk.path());
    CHECK(result.exit_code == 2);
    CHECK(count_lines(result.err) == 1);
    CHECK_THAT(result.err, Contains(words_of_it + " caf\\xe9") && Contains("is not UTF-8"));
  };
  const std::string train = "--data text.txt --steps 1 " + shape;
  refused("train_gpt2", train + "--output", "--output");
  CHECK_FALSE(fs::exists(desk.path() / odd));
  refused("train_mlp", "--steps 1 --output", "--output");
  run_program("train_gpt2", desk.train("--steps 1 --output run"), {}, desk.path());
  fs::copy(desk.path() / "run", desk.path() / odd, fs::copy_options::recursive);
  refused("train_gpt2", train + "--output other --resume", "--resume");
  CHECK_FALSE(fs::exists(desk.path() / "other/model"));
  // A run in such a folder goes on, since its own files name it from within.
  desk.works("cd " + quoted(odd) + "; $bin/train_gpt2 --data ../text.txt --steps 2 " + shape +
             "--output . > /dev/null");
}

TEST_CASE("what is only read or written beside may have any name", "[places]") {
  const Desk desk;
  for (const std::string& name : {odd, std::string("a b'\n$x")}) {
    INFO(name);
    const std::string q = quoted(name);
    desk.works("cp -r model " + q + "; cp text.txt " + q + ".txt");
    for (const std::string& command :
         {"prepare_data --input " + q + ".txt --output " + q + ".data",
          "convert --input " + q + " --output " + q + ".copy",
          "evaluate --model " + q + " --data " + q + ".data",
          "generate --model " + q + " --prompts " + q + ".txt --max-tokens 0",
          "probe --model model --tokens t.bin --dump " + q + ".st",
          "train_gpt2 --steps 1 " + shape + "--save never --data " + q +
              ".txt --output run --trace " + q + ".trace"})
      desk.works("$bin/" + command + " > /dev/null");
    CHECK(fs::exists(desk.path() / (name + ".trace")));
  }
}

TEST_CASE("a run with the largest seed is logged, saved and resumed", "[places]") {
  const Desk desk;
  const std::string seed = "18446744073709551615";
  const auto run = [&](const std::string& more) {
    const ProgramResult result = run_program("train_gpt2", desk.train(more), {}, desk.path());
    CHECK(result.err == "");
    CHECK(result.exit_code == 0);
    return result.out;
  };
  run("--steps 1 --output a --seed " + seed);
  const auto state =
      nlohmann::json::parse(read_file(desk.path() / "a/checkpoints/step-00000001/state.json"));
  CHECK(state.at("run").at("seed").dump() == seed);
  const std::string log = read_file(desk.path() / "a/log.jsonl");
  CHECK_THAT(log.substr(0, log.find('\n')), Contains("\"seed\":" + seed));
  CHECK_THAT(run("--steps 2 --output a --seed " + seed), Contains("resumed"));
  CHECK_THAT(run("--config a/config.toml --steps 3"), Contains("resumed"));
  const ProgramResult other =
      run_program("train_gpt2", desk.train("--steps 3 --output a --seed 18446744073709551614"), {},
                  desk.path());
  CHECK(other.exit_code == 2);
  CHECK_THAT(other.err, Contains("its seed is " + seed));
  for (const std::string& command :
       {std::string("generate --model a/model --prompt x --max-tokens 2 --num 2 --seed ") + seed,
        "train_mlp --steps 1 --threads 1 --output mlp --seed " + seed,
        "prepare_data --input lines.jsonl --output data --split-seed " + seed,
        "plan --data text.txt " + shape + "--seed " + seed})
    desk.works("$bin/" + command + " > /dev/null");
}

}  // namespace sluice::test::places_test
