#include <set>
#include <sstream>

#include "models/text/byte_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// Every flag of every program has its effect or is refused. A flag is either in `everywhere`, or
// has rows that say beside what it is refused; one that has neither fails the first test.

namespace sluice::test::no_effect_test {
namespace {

/// A command in which a flag would change nothing, and a part of what is said.
struct Row {
  const char* flag;  ///< with its value
  const char* beside;
  const char* says;  ///< null: the flag has an effect beside everything here
};

struct Program {
  const char* name;
  /// Flags with an effect beside every kind of model and of data. Those of memory and of several
  /// ranks are refused elsewhere where they have none, or wait for ranks.
  std::string everywhere;
  std::vector<Row> rows;
};

const std::string train_everywhere =
    // Model, data, batch
    "--model --vocab-size --context --data --val-data --tokenizer-dir --data-order --batch-size "
    "--micro-batch --seq-len --steps "
    // Optimizer; --lora-dropout is that of an adapter too
    "--optimizer --lr --warmup-steps --lr-schedule --weight-decay --grad-clip "
    "--dropout --lora-rank --adapter "
    // Machine and memory
    "--precision --device --threads --host-memory --placement --head-chunk --state-layout "
    "--state-home --stream-chunks "
    // Ranks: with one they have nothing to do, so that a command works for any number
    "--dp --pp --tp --pipeline --zero --bucket-size --communication --overlap "
    "--checked --collective-timeout --rank-files --inject "
    // Run; its own config.toml has --save-every and --keep also with --save never
    "--output --trace --save-every --save --keep --resume --log-every --peak-tflops "
    "--quiet --verbose --seed --max-bad-steps --skip-spikes --config";

const std::vector<Row> train_rows = {
    {"--n-layer 3", "--model model --data text.txt", "--model model decides it (2)"},
    {"--n-layer 4", "--model model --data text.txt", "--model model decides it (2)"},
    {"--n-head 4", "--model model --data text.txt", "--model model decides it (2)"},
    {"--n-embd 32", "--model model --data text.txt", "--model model decides it (16)"},
    {"--n-embd 32", "--model gpt2-medium --tokenizer bytes --data text.txt", "decides it (1024)"},
    {"--pack", "--data text.txt", "is for pairs"},
    {"--tokenizer bytes", "--data tokens.bin --vocab-size 256", "is for text"},
    {"--prompt a", "--data tokens.bin --vocab-size 256", "give --tokenizer-dir"},
    {"--sample-every 1", "--data tokens.bin --vocab-size 256", "give --tokenizer-dir"},
    {"--sample-tokens 5", "--data tokens.bin --vocab-size 256", "give --tokenizer-dir"},
    {"--prompt a", "--data text.txt --sample-tokens 0", "--sample-tokens is 0"},
    {"--val-every 1", "--data tokens.bin --vocab-size 256", "give --val-data"},
    {"--val-steps 1", "--data tokens.bin --vocab-size 256", "give --val-data"},
    {"--keep-best", "--data tokens.bin --vocab-size 256", "give --val-data"},
    {"--min-lr 0.0001", "--data text.txt --lr-schedule constant", "--lr-schedule constant keeps"},
    {"--beta1 0.5", "--data text.txt --optimizer adafactor", "the optimizer is adafactor"},
    {"--beta2 0.5", "--data text.txt --optimizer sgd", "the optimizer is sgd"},
    {"--eps 0.5", "--data text.txt --optimizer sgd", "the optimizer is sgd"},
    {"--muon-lr 0.1", "--data text.txt", "is for --optimizer muon"},
    {"--muon-momentum 0.5", "--data text.txt", "is for --optimizer muon"},
    {"--lora-alpha 3", "--model model --data text.txt", "give --lora-rank"},
    {"--lora-targets mlp", "--model model --data text.txt", "give --lora-rank"},
    {"--lora-dropout 0.5", "--model model --data text.txt", "give --lora-rank"},
    {"--int8-base", "--model model --data text.txt", "give --lora-rank"},
    {"--attention tma", "--data text.txt", "leave it out"},
    {"--cuda-graph", "--data text.txt", "leave it out"},
    {"--gpu-memory 1GiB", "--data text.txt", "computes on the CPU"},
    {"--gradients bf16", "--data text.txt", "needs --precision bf16"},
    {"--placement offload-state", "--data text.txt", "computes on the CPU"},
    {"--stream-chunks 4096*2", "--data text.txt", "--state-home"},
    {"--sequence-parallel", "--data text.txt", "give --tp too"},
    {"--pipeline-split parameters", "--data text.txt", "give --pp or --pipeline"},
    {"--stash input", "--data text.txt", "give --pp or --pipeline"},
    {"--stash input:1MiB", "--data text.txt", "give --pp or --pipeline"},
    {"--skip-batches 1", "--data text.txt", "no checkpoint to resume from"},
};

std::vector<Row> plan_rows() {
  std::vector<Row> rows{
      {"--top 2", "--model gpt2", "is for --gpus"},
      {"--link 1GB", "--model gpt2", "is for several ranks"},
      {"--ranks-per-node 2", "--model gpt2", "is for several ranks"},
      {"--network 1GB,9us", "--model gpt2 --dp 2", "is between nodes"},
      {"--schedule-svg s.svg", "--model gpt2", "--pp"},
      {"--schedule-csv s.csv", "--model gpt2", "--pp"},
      {"--n-layer 3", "--model gpt2 --device-profile A100", "decides it (12)"},
      {"--n-layer 3", "--model gpt2 --device-profile A100 --gpus 2", "decides it (12)"},
      {"--json", "--save-probe probe.json", "--save-probe measures this machine"},
  };
  // A plan prints the flags of a run in its command, and refuses them where the run would; but it
  // may plan for a GPU that is not here, and does not look at checkpoints.
  for (Row row : train_rows) {
    const std::string flag = row.flag;
    if (flag == "--gpu-memory 1GiB" || flag == "--skip-batches 1") row.says = nullptr;
    rows.push_back(row);
  }
  return rows;
}

const std::vector<Program> programs = {
    {"train_gpt2", train_everywhere, train_rows},
    {"plan", train_everywhere + " --device-profile --probe --save-probe --scaling --gpus",
     plan_rows()},
    {"evaluate",
     "--model --adapter --data --tokenizer-dir --seq-len --max-tokens --json --precision --device "
     "--threads",
     {{"--pack", "--model model --data text.txt", "is for pairs"},
      {"--text-format text", "--model model --data tokens.bin", "is for text"},
      {"--text-field body", "--model model --data text.txt", "is for JSON Lines"},
      {"--text-field body", "--model model --data data", "is for text"},
      {"--skip-bad-lines", "--model model --data text.txt", "is for JSON Lines"},
      {"--special", "--model model --data tokens.bin", "is for text"},
      {"--special", "--model model --data text.txt", "has no special token"}}},
    {"generate",
     "--model --adapter --precision --prompt --prompts --tokens --max-tokens --num --temperature "
     "--seed --device --threads --context --no-cache",
     {{"--batch-size 2", "--model model --prompt a", "is for --prompts"},
      {"--tokenizer-dir model", "--model model --tokens 1", "--tokens takes and prints ids"},
      {"--special", "--model model --tokens 1", "--tokens takes and prints ids"},
      {"--stop b", "--model model --tokens 1", "--tokens takes and prints ids"},
      {"--top-k 2", "--model model --prompt a --temperature 0", "is greedy"},
      {"--top-p 0.5", "--model model --prompt a --temperature 0", "is greedy"},
      {"--gpu-memory 1GiB", "--model model --prompt a --device cpu", "on the CPU"}}},
    {"prepare_data",
     "--input --tokenizer --tokenizer-dir --output --encode-only --pairs --text-format",
     {{"--val-fraction 0.2", "--input text.txt --encode-only out.bin", "writes one file"},
      {"--shard-tokens 9", "--input text.txt --encode-only out.bin", "is for --output"},
      {"--prompt-field a", "--input lines.jsonl --output out", "--pairs"},
      {"--completion-field a", "--input lines.jsonl --output out", "--pairs"},
      {"--text-field a", "--input text.txt --output out", "is for JSON Lines"},
      {"--skip-bad-lines", "--input text.txt --output out", "is for JSON Lines"},
      {"--special", "--input text.txt --output out", "has no special token"},
      {"--split-seed 7", "--input text.txt --output out", "of fewer than 10"},
      {"--split-seed 7", "--input lines.jsonl --encode-only out.bin", "writes one file"},
      {"--split-seed 7", "--input lines.jsonl --output out --val-fraction 0",
       "--val-fraction 0 takes none"}}},
    {"convert", "--input --output --dtype --context --merge", {}},
    {"probe",
     "--model --adapter --tokens --batch --seq --dump --precision --device --threads",
     {{"--int8-base", "--model model --tokens tokens.bin", "give --adapter too"}}},
    {"train_mlp",
     "--layers --width --hidden --classes --steps --batch-size --points --lr --seed --tp --dp "
     "--precision --threads --output",
     {{"--dp-reduce gather", "--steps 1", "--dp"}}},
};

/// Returns the flags that --help lists.
std::set<std::string> flags_of(const std::string& program) {
  std::set<std::string> flags;
  std::istringstream help(run_well(program, {"--help"}));
  for (std::string line; std::getline(help, line);)
    if (line.starts_with("  --"))
      flags.insert(
          line.substr(2, line.find_first_not_of("-abcdefghijklmnopqrstuvwxyz0123456789", 2) - 2));
  flags.erase("--version");
  return flags;
}

/// A model of bytes and data of every kind.
struct Folder : TempDir {
  Folder() {
    DecoderConfig config = small_config();
    config.vocab_size = 256;
    write_model(path() / "model", config);
    ByteTokenizer().save(path() / "model");
    std::string text, lines, pairs;
    for (int i = 0; i < 300; ++i) {
      const std::string number = std::to_string(i);
      text += "the quick brown fox " + number + "\n";
      lines += R"({"text": "line )" + number + "\"}\n";
      pairs += R"({"prompt": "p)" + number + R"(", "completion": "c"})" + "\n";
    }
    write_file(path() / "text.txt", text);
    write_file(path() / "lines.jsonl", lines);
    write_file(path() / "pairs.jsonl", pairs);
    write_tokens(path() / "tokens.bin", 3000, 256);
    here("prepare_data", "--input text.txt --output data");
    here("prepare_data", "--input pairs.jsonl --pairs --output pairs");
  }

  ProgramResult here(const std::string& program, const std::string& flags) const {
    return run_program(program, words(flags), "", path());
  }
};

}  // namespace

TEST_CASE("every flag of every program is known to have an effect or to be refused", "[flags]") {
  for (const Program& program : programs) {
    CAPTURE(program.name);
    std::set<std::string> known;
    for (const std::string& flag : words(program.everywhere))
      known.insert(flag);
    for (const Row& row : program.rows)
      known.insert(words(row.flag)[0].substr(0, std::string(row.flag).find('=')));
    for (const std::string& flag : flags_of(program.name)) {
      INFO("add rows that say beside what it is refused: " << flag);
      CHECK(known.erase(flag) == 1);
    }
    CHECK(known == std::set<std::string>());
  }
}

TEST_CASE("a flag that would change nothing is refused by its name", "[flags]") {
  const Folder folder;
  for (const Program& program : programs)
    for (const Row& row : program.rows) {
      if (row.says == nullptr) continue;
      std::string flags = std::string(row.beside) + " " + row.flag;
      const std::string name = program.name;
      if (name == "train_gpt2") flags += " --device cpu --steps 1 --batch-size 2 --output out";
      if (name == "plan" && flags.find("--save-probe") == std::string::npos)
        flags += " --batch-size 2";
      CAPTURE(name, flags);
      const ProgramResult result = folder.here(name, flags);
      CHECK(result.exit_code == 2);
      CHECK(result.out.empty());
      CHECK(result.err.size() <= 300);
      CHECK_THAT(result.err,
                 StartsWith(name + ": error: ") && Contains(row.says) &&
                     Contains(words(row.flag)[0].substr(0, std::string(row.flag).find('='))));
      CHECK_FALSE(fs::exists(folder.path() / "out"));
    }
}

TEST_CASE("the same flags are taken where they have an effect", "[flags]") {
  const Folder folder;
  const char* const commands[] = {
      "train_gpt2 --data text.txt --n-layer 1 --n-head 1 --n-embd 8 --context 16",
      "train_gpt2 --model model --data text.txt --n-layer 2 --n-head 2 --n-embd 16",
      "train_gpt2 --model model --data lines.jsonl",
      "train_gpt2 --data data --n-layer 1 --tokenizer bytes --prompt a --val-every 1 --context 16",
      "train_gpt2 --model model --data tokens.bin --val-data text.txt --val-steps 1 --val-every 1",
      "train_gpt2 --model model --data tokens.bin --val-every 0 --sample-tokens 0"};
  for (const std::string command : commands) {
    CAPTURE(command);
    Arguments flags =
        words(command + " --steps 1 --batch-size 2 --device cpu --threads 1 --output run");
    flags.erase(flags.begin());
    const ProgramResult result = run_program("train_gpt2", flags, "", folder.path());
    CHECK(result.err == "");
    CHECK(result.exit_code == 0);
    // A run's own config.toml repeats every flag and must remain valid.
    CHECK(run_program("train_gpt2", {"--config", "run/config.toml"}, "", folder.path()).err == "");
    fs::remove_all(folder.path() / "run");
  }
}

TEST_CASE("a schedule that contradicts itself is refused", "[flags]") {
  const Folder folder;
  const auto error = [&](const std::string& flags) {
    return folder.here("train_gpt2", "--data text.txt --batch-size 2 --device cpu " + flags).err;
  };
  CHECK_THAT(error("--min-lr 0.01 --lr 0.001 --steps 2"),
             StartsWith("train_gpt2: error: --min-lr 0.01 is above the rate of 0.001"));
  // A short trial of a long run's flags is no mistake, but its rate is told.
  const ProgramResult short_run =
      folder.here("train_gpt2",
                  "--data text.txt --context 16 --n-layer 1 --batch-size 2 --device cpu --steps 3 "
                  "--warmup-steps 30 --lr 0.01 --save never --output out");
  CHECK(short_run.exit_code == 0);
  CHECK_THAT(short_run.out, Contains("reaches 0.001 of 0.01: its warm-up of 30 steps"));
}

}  // namespace sluice::test::no_effect_test
