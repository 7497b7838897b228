#include <nlohmann/json.hpp>

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_history.h"
#include "apps/cli/parse/meant.h"
#include "apps/cli/sizes.h"
#include "apps/config/train_config.h"
#include "apps/plan/cost/device_profile.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

// Names, sizes and values as people write them, and what programs say of what they do not know.

namespace sluice::test::words_test {
namespace {

const std::vector<std::string> programs{"train_gpt2", "plan",  "generate", "prepare_data",
                                        "convert",    "probe", "train_mlp"};

/// Returns the message of train_gpt2 about these arguments.
std::string said_of(const std::string& arguments) {
  TrainConfig options;
  CommandLine line("train_gpt2", "");
  declare_config(line, options);
  Arguments all{"train_gpt2"};
  for (const std::string& word : words(arguments))
    all.push_back(word);
  std::vector<const char*> argv;
  for (const std::string& word : all)
    argv.push_back(word.c_str());
  return error_message([&] { line.parse(static_cast<int>(argv.size()), argv.data()); });
}

std::size_t bytes_of(const std::string& text) {
  return parse_bytes("--size", text);
}

/// A run of a tiny model.
struct Runs : TempDir {
  Runs() { write_tokens(path() / "t.bin", 400, 64); }

  Arguments flags(const std::string& more) const {
    return words(
        "--n-layer 1 --n-head 2 --n-embd 16 --vocab-size 64 --context 16 --batch-size 2 --threads "
        "1 "
        "--device cpu --lr-schedule constant --val-every 0 --sample-tokens 0 --data t.bin " +
        more);
  }
  ProgramResult train(const std::string& more) const {
    return run_program("train_gpt2", flags(more), "", path());
  }
  std::string train_well(const std::string& more) const {
    const ProgramResult result = train(more);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return result.out;
  }
  std::string weights(const std::string& run) const {
    return read_file(list_checkpoints(path() / run / "checkpoints").back() / "weights.safetensors");
  }
};

}  // namespace

TEST_CASE("a flag of another program names the flag that it means", "[words]") {
  const std::pair<const char*, const char*> rows[] = {
      {"--learning-rate", "--lr"},
      {"--learning-rate=3e-4", "--lr"},
      {"--max-iters", "--steps"},
      {"--max-steps", "--steps"},
      {"--iters", "--steps"},
      {"--bs", "--batch-size"},
      {"--block-size", "--context"},
      {"--max-length", "--context"},
      {"--out-dir", "--output"},
      {"--output-dir", "--output"},
      {"-o", "--output"},
      {"--dataset", "--data"},
      {"--train-data", "--data"},
      {"--fp16", "--precision fp16"},
      {"--bf16", "--precision bf16"},
      {"--dtype", "--precision"},
      {"--gpu", "--device cuda"},
      {"--checkpoint", "--resume"},
      {"--wd", "--weight-decay"},
      {"--clip", "--grad-clip"},
      {"--n-layers", "--n-layer"},
      {"--num-layers", "--n-layer"},
      {"--hidden-size", "--n-embd"},
      {"--eval-interval", "--val-every"},
      // Flags that are similar in their letters.
      {"--bach-size", "--batch-size"},
      {"--Steps", "--steps"},
      {"-lr", "--lr"},
      {"--weight", "--weight-decay"},
  };
  for (const auto& [given, meant] : rows) {
    INFO(given);
    const std::string name = std::string(given).substr(0, std::string(given).find('='));
    CHECK(said_of(std::string(given) + " 1") ==
          "unknown flag '" + name + "' (did you mean " + meant + "?); --help lists all");
  }
  CHECK_THAT(said_of("--epochs 3"), Contains("did you mean --steps?") && Contains("an epoch is"));
  CHECK_THAT(said_of("--gradient-accumulation-steps 4"),
             Contains("did you mean --micro-batch?") && Contains("--batch-size / --micro-batch"));
  CHECK_THAT(said_of("--gpus 2"),
             Contains("did you mean --dp?") && Contains("scripts/launch -n N"));
  CHECK(said_of("--zzzzzzzzzzz 1") == "unknown flag '--zzzzzzzzzzz'; --help lists all");
  CHECK(said_of("--widht=8") == "unknown flag '--widht'; --help lists all");
}

TEST_CASE("a suggestion is a flag that the program has", "[words]") {
  std::string all_help;
  for (const std::string& program : programs) {
    const std::string help = run_well(program, {"--help"});
    all_help += help;
    // Every name that some program has is unknown to the others, or is taken.
    for (const char* given : {"--learning-rate", "--epochs", "--bs", "--fp16", "--dtype", "--gpus",
                              "--out", "--input", "--data", "--checkpoint", "--max-length", "-n",
                              "--num-layers", "--hidden-size", "-o", "-q", "-v"}) {
      INFO(program << " " << given);
      const std::string said = run_program(program, {given}).err;
      const auto at = said.find("did you mean ");
      if (at == std::string::npos) continue;
      const std::string meant = words(said.substr(at + 13)).front();
      const std::string flag = meant.substr(0, meant.find('?'));
      CHECK_THAT(help, Contains("\n  " + flag + " ") || Contains(flag + ","));
    }
  }
  // Others are made in parallel to this table.
  const std::vector<std::string> to_come{"--log-every", "--quiet", "--verbose"};
  for (const std::string& flag : flags_that_are_meant())
    if (std::ranges::find(to_come, flag) == to_come.end()) CHECK_THAT(all_help, Contains(flag));
}

TEST_CASE("a flag without its value says which it wants", "[words]") {
  for (const char* arguments : {"--resume", "--resume --output o", "--resume --output=o"}) {
    INFO(arguments);
    CHECK_THAT(said_of(arguments), Contains("--resume needs a value") && Contains("auto") &&
                                       Contains("never") && Contains("a run's folder") &&
                                       Contains("a checkpoint"));
  }
  CHECK_THAT(said_of("--lr"), Contains("--lr needs a value; --help says of it: Learning rate"));
  CHECK(said_of("--prompt -x") == "(no error)");
  CHECK(said_of("--prompt=--steps") == "(no error)");
  CHECK_THAT(said_of("--steps 1 --steps 2"), Contains("--steps is given more than once"));
}

TEST_CASE("choices may be in any letters, and words for them name them", "[words]") {
  CHECK(said_of("--precision BF16") == "(no error)");
  CHECK_THAT(said_of("--precision float16"),
             Contains("'float16' is not one of") && Contains("did you mean fp16?"));
  CHECK_THAT(said_of("--device gpu"), Contains("did you mean cuda?"));
  CHECK_THAT(said_of("--optimizer adam"), Contains("did you mean adamw?"));
  CHECK_THAT(said_of("--tokenizer zzzzzz"), Contains("is not one of") && !Contains("did you mean"));
}

TEST_CASE("sizes are read as people write them", "[words]") {
  constexpr std::size_t gib = std::size_t{1} << 30;
  for (const char* text : {"8GiB", "8G", "8g", "8gib", "8GIB", "8 GiB", "8 g", "8192M", "8192MiB"})
    CHECK(bytes_of(text) == 8 * gib);
  CHECK(bytes_of("8GB") == 8'000'000'000);
  CHECK(bytes_of("8gb") == 8'000'000'000);
  CHECK(bytes_of("1.5G") == gib * 3 / 2);
  CHECK(bytes_of("2048K") == std::size_t{2} << 20);
  CHECK(bytes_of("2T") == 2048 * gib);
  CHECK(bytes_of("8589934592") == 8 * gib);
  for (const char* text : {"8GG", "8X", "8  G", "G", "8 ", "8iB", "-8G", "8Gi", ""}) {
    INFO(text);
    CHECK_THAT(error_message([&] { bytes_of(text); }), Contains("--size"));
  }
}

TEST_CASE("cards are named as people write them", "[words]") {
  const std::pair<const char*, const char*> rows[] = {
      {"a100", "A100 80 GB"},
      {"A100", "A100 80 GB"},
      {"A100-80GB", "A100 80 GB"},
      {"A100 80 GB", "A100 80 GB"},
      {"NVIDIA A100-SXM4-80GB", "A100 80 GB"},
      {"NVIDIA A100 80GB PCIe", "A100 80 GB"},
      {"h100-80g", "H100 80 GB"},
      {"NVIDIA H100 80GB HBM3", "H100 80 GB"},
      {"H200 141GB", "H200"},
      {"RTX 3090", "RTX 3090"},
      {"rtx3090", "RTX 3090"},
      {"NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"},
      {"2080-Ti", "RTX 2080 Ti"},
      {"geforce_rtx_4090", "RTX 4090"},
  };
  for (const auto& [text, name] : rows) {
    INFO(text);
    CHECK(known_profile(text).name == name);
  }
  const auto refused = [](const std::string& text) {
    return error_message([&] { known_profile(text); });
  };
  CHECK_THAT(refused("V100"), Contains("V100") &&
                                  Contains("2080ti, 3090, 4090, a100, h100, h200") &&
                                  Contains("the nearest is"));
  CHECK_THAT(refused("RTX 4080"), Contains("the nearest is 4090"));
  CHECK_THAT(refused("A100-40GB"), Contains("80 GB") && Contains("--gpu-memory 40GiB"));
  CHECK_THAT(refused("3090 Super Duper"), Contains("is not one of"));
  CHECK_THAT(refused(""), Contains("is not one of"));
}

TEST_CASE("resuming a run's folder goes on from the run's newest checkpoint, in its folder",
          "[words]") {
  const Runs runs;
  runs.train_well("--steps 4 --output whole");
  runs.train_well("--steps 2 --output halves");
  for (const std::string name : {"halves", "halves/", "./halves/checkpoints"}) {
    INFO(name);
    const Runs copy;
    fs::copy(runs.path() / "halves", copy.path() / "halves", fs::copy_options::recursive);
    CHECK_THAT(copy.train_well("--steps 4 --resume " + name),
               Contains("resumed      halves/checkpoints/step-00000002") ||
                   Contains("resumed      ./halves/checkpoints/step-00000002"));
    CHECK_FALSE(fs::exists(copy.path() / "runs"));
    CHECK(copy.weights("halves") == runs.weights("whole"));
  }
  // A run resumed with --output continues there and leaves the first run unchanged.
  const std::string before = runs.weights("halves");
  runs.train_well("--steps 4 --resume halves --output other");
  CHECK(runs.weights("other") == runs.weights("whole"));
  CHECK(runs.weights("halves") == before);
  // A damaged checkpoint costs no run while an older one is whole.
  runs.train_well("--steps 4 --output halves --keep 2");
  write_file(list_checkpoints(runs.path() / "halves/checkpoints").back() / "weights.safetensors",
             "damaged");
  CHECK_THAT(runs.train_well("--steps 3 --resume halves --output third"),
             Contains("falling back to halves/checkpoints/step-00000002"));
}

TEST_CASE("an unusual learning rate is warned about in one line and taken", "[words]") {
  const Runs runs;
  const std::string warning = "warning      --lr ";
  int number = 0;
  const auto trained = [&](const std::string& flags) {
    return runs.train_well("--steps 1 --save never --output r" + std::to_string(number++) + " " +
                           flags);
  };
  for (const char* optimizer : {"adamw", "adamw8bit", "adafactor", "muon", "sgd"}) {
    INFO(optimizer);
    const std::string with = std::string("--optimizer ") + optimizer + " --lr ";
    const std::string large = trained(with + "10");
    CHECK_THAT(large, Contains(warning + "10 is unusually large for " + optimizer));
    CHECK(large.find(warning) < large.find("step 1/1"));
    CHECK_THAT(trained(with + "1e-9"), Contains("is unusually small for"));
    CHECK_THAT(trained(with + "0.001"), !Contains(warning));
    CHECK_THAT(trained(with + "0"), !Contains(warning));
  }
  CHECK_THAT(trained("--optimizer sgd --lr 0.5"), !Contains(warning));
  CHECK_THAT(trained("--optimizer adamw --lr 0.5"), Contains(warning));
  CHECK_THAT(trained("--lr 10 --quiet"), Contains(warning));
  CHECK_THAT(read_file(runs.path() / ("r" + std::to_string(number - 1)) / "log.jsonl"),
             Contains("--lr 10 is unusually large"));
}

TEST_CASE("plan prints a command that trains as planned, and the time of the whole run",
          "[words]") {
  const Runs runs;
  const Arguments flags = runs.flags("--steps 3 --rank-files it's --output planned");
  const ProgramResult planned = run_program("plan", flags, "", runs.path());
  REQUIRE(planned.exit_code == 0);
  CHECK_THAT(planned.out, Contains("\nwhole run    3 steps x "));
  Arguments with_json = flags;
  with_json.emplace_back("--json");
  const Json json = Json::parse(run_program("plan", with_json, "", runs.path()).out);
  CHECK(json.at("steps") == 3);
  const double step = json.at("chosen").at("predicted_seconds").at("total");
  CHECK(json.at("run_seconds").get<double>() == Approx(3 * step));
  const std::string command = json.at("command");
  CHECK_THAT(planned.out, Contains("\ncommand      " + command + "\n"));
  REQUIRE(command.starts_with("train_gpt2 --n-layer 1 "));
  CHECK_THAT(command, Contains(json.at("chosen").at("flags").get<std::string>()));
  CHECK_THAT(command, !Contains("--json"));
  const ProgramResult trained =
      run_program("/bin/sh", {"-c", SLUICE_BIN_DIR "/" + command}, "", runs.path());
  INFO(trained.err);
  CHECK(trained.exit_code == 0);
  CHECK(fs::exists(runs.path() / "planned/model/model.safetensors"));
}

TEST_CASE("plan --gpus says what it plans for, and prints the command of all ranks", "[words]") {
  const std::string shape = "--model gpt2 --batch-size 16 --top 1 --gpus ";
  const auto plan = [&](const std::string& flags) {
    return run_well("plan", words(shape + flags));
  };
  CHECK_THAT(
      plan("2 --device cpu"),
      Contains("note         no card is named, so this plans for 2 computers like this one") &&
          Contains("--device-profile (2080ti, ") && !Contains("GiB a GPU"));
  const std::string card = plan("8 --device-profile A100-80GB --steps 100");
  CHECK_THAT(card, !Contains("no card is named") && Contains("cluster      8 x A100 80 GB") &&
                       Contains("whole run    100 steps x ") &&
                       Contains("command      scripts/launch -n 8 train_gpt2 --model gpt2 "
                                "--batch-size 16 --steps 100 --dp "));
  CHECK_THAT(plan("16 --device-profile h100"),
             Contains("command      scripts/launch -n 16 --hostfile HOSTS train_gpt2 "));
}

}  // namespace sluice::test::words_test
