#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/io/json_document.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/ranks.h"

// Low-rank adapters as a user trains, merges and shares them.

namespace sluice::test::lora_program_test {
namespace {

namespace fs = std::filesystem;

class Runs : public TempDir {
 public:
  std::string at(const std::string& name) const { return (path() / name).string(); }

  ProgramResult train(const std::string& name, const std::string& base, const std::string& flags,
                      const std::string& model = {}) const {
    const Fixture fixture(fixture_folders().front(), base);
    return run_program(
        "train_gpt2",
        words("--model " + (model.empty() ? fixture.model().string() : model) + " --data " +
              fixture.token_file().string() + " --val-data " + fixture.token_file().string() +
              " --data-order sequential --batch-size 2 --seq-len 16 --lr 1e-2 --lr-schedule "
              "constant --warmup-steps 2 --val-every 0 --val-steps 1 --sample-tokens 0 --threads 1 "
              "--peak-tflops 1 --output " +
              at(name) + " " + flags));
  }
};

std::string model_of(const std::string& base) {
  return Fixture(fixture_folders().front(), base).model().string();
}

/// The loss of the first sequences of the fixture's tokens.
double loss_of(const std::string& base, const Arguments& model) {
  const std::string tokens = Fixture(fixture_folders().front(), base).token_file().string();
  Arguments arguments{"--data", tokens, "--seq-len", "16", "--json"};
  arguments.insert(arguments.end(), model.begin(), model.end());
  return nlohmann::json::parse(run_well("evaluate", arguments)).at("loss").get<double>();
}

nlohmann::json last_event(const std::string& run) {
  std::ifstream log(run + "/log.jsonl");
  std::string line, last;
  while (std::getline(log, line))
    last = line;
  return nlohmann::json::parse(last);
}

}  // namespace

TEST_CASE("adapters are trained, resumed, merged and used", "[lora]") {
  const Runs runs;
  for (const std::string base : {"tiny", "llama"}) {
    INFO(base);
    const fs::path model = model_of(base);
    const std::string before = read_file(model / "model.safetensors");
    const std::string flags = "--lora-rank 4 --lora-dropout 0.1 --steps ";
    const ProgramResult whole = runs.train(base + "-whole", base, flags + "12");
    INFO(whole.err);
    REQUIRE(whole.exit_code == 0);
    REQUIRE(runs.train(base + "-parts", base, flags + "5").exit_code == 0);
    const ProgramResult rest = runs.train(base + "-parts", base, flags + "12");
    CHECK_THAT(rest.out, Contains("resumed"));
    const std::string run = runs.at(base + "-whole"), adapter = run + "/model";
    CHECK((read_file(adapter + "/adapter_model.safetensors") ==
           read_file(runs.at(base + "-parts") + "/model/adapter_model.safetensors")));
    CHECK((read_file(model / "model.safetensors") == before));
    CHECK_FALSE(fs::exists(adapter + "/model.safetensors"));
    const nlohmann::json end = last_event(run);
    CHECK(end.at("planned_bytes") == end.at("engine_peak_bytes"));
    CHECK(end.at("planned_bytes") > 0);
    const nlohmann::json config = read_json_file(adapter + "/adapter_config.json", 1 << 16);
    CHECK(config.at("r") == 4);
    CHECK(config.at("lora_alpha") == 8);
    CHECK(config.at("fan_in_fan_out") == (base == "tiny"));

    // The adapters help, wherever they are added to the model.
    const double untrained = loss_of(base, {"--model", model.string()});
    const double adapted = loss_of(base, {"--model", run});
    CHECK(adapted < untrained - 0.01);
    CHECK(loss_of(base, {"--model", model.string(), "--adapter", adapter}) == adapted);
    run_well("convert",
             {"--input", model.string(), "--merge", adapter, "--output", run + "/merged"});
    CHECK(loss_of(base, {"--model", run + "/merged"}) == Approx(adapted).epsilon(1e-7));
    CHECK_THAT(
        run_well("convert", {"--input", adapter, "--output", run + "/bf16", "--dtype", "bf16"}),
        Contains("rounding to bf16 loses ") && Contains("% of what the adapters change"));
    CHECK(loss_of(base, {"--model", run + "/bf16"}) == Approx(adapted).epsilon(1e-2));
    // Training goes on from them, with what they decide.
    const ProgramResult more = runs.train(base + "-more", base, "--steps 2 --adapter " + adapter);
    INFO(more.err);
    CHECK(more.exit_code == 0);
    CHECK(read_json_file(runs.at(base + "-more/model/adapter_config.json"), 1 << 16).at("r") == 4);
  }
}

TEST_CASE("adapters are trained beside a model in 8 bits", "[lora]") {
  const Runs runs;
  for (const std::string base : {"tiny", "llama", "odd"}) {
    INFO(base);
    const std::string model = model_of(base);
    const std::string before = read_file(model + "/model.safetensors");
    const std::string flags = "--lora-rank 4 --int8-base --steps ";
    const ProgramResult whole = runs.train(base + "-whole", base, flags + "12");
    INFO(whole.err);
    REQUIRE(whole.exit_code == 0);
    CHECK_THAT(whole.out, Contains("base         the matrices of the blocks are kept in 8 bits\n"));
    REQUIRE(runs.train(base + "-parts", base, flags + "5").exit_code == 0);
    const ProgramResult rest = runs.train(base + "-parts", base, flags + "12");
    CHECK_THAT(rest.out, Contains("resumed"));
    const std::string run = runs.at(base + "-whole"), adapter = run + "/model";
    CHECK((read_file(adapter + "/adapter_model.safetensors") ==
           read_file(runs.at(base + "-parts") + "/model/adapter_model.safetensors")));
    CHECK((read_file(model + "/model.safetensors") == before));
    const nlohmann::json end = last_event(run);
    CHECK(end.at("planned_bytes") == end.at("engine_peak_bytes"));
    REQUIRE(runs.train(base + "-wide", base, "--lora-rank 4 --steps 1").exit_code == 0);
    CHECK(end.at("planned_bytes") < last_event(runs.at(base + "-wide")).at("planned_bytes"));
    // They help beside the unrounded model too.
    const double untrained = loss_of(base, {"--model", model});
    CHECK(loss_of(base, {"--model", run}) < untrained - 0.01);
    // A run keeps to the form of its base.
    CHECK_THAT(runs.train(base + "-whole", base, "--lora-rank 4 --steps 13").err,
               Contains("cannot be resumed: its lora is"));
    const std::string tokens = Fixture(fixture_folders().front(), base).token_file().string();
    const Arguments probe{"--model", model, "--adapter", adapter, "--tokens", tokens};
    Arguments rounded = probe;
    rounded.push_back("--int8-base");
    CHECK(run_well("probe", probe) != run_well("probe", rounded));
  }
  CHECK_THAT(
      run_program("probe", {"--model", model_of("tiny"), "--int8-base", "--tokens", "x"}).err,
      Contains("give --adapter too"));
}

TEST_CASE("a plan that is refused says which adapters would fit", "[lora]") {
  const auto refused = [](const std::string& memory, const std::string& flags) {
    const ProgramResult result =
        run_program("plan", words("--model gptj-6b --device-profile h200 --batch-size 4 --seq-len "
                                  "1024 --steps 100 --host-memory 32GiB --gpu-memory " +
                                  memory + " " + flags));
    CHECK(result.exit_code == 2);
    CHECK(count_lines(result.err) == 1);
    return result.err;
  };
  CHECK_THAT(refused("14GiB", ""), Contains("with --lora-rank 16, which trains adapters and not") &&
                                       Contains("it fits: 13.") && !Contains("--int8-base"));
  CHECK_THAT(refused("10GiB", ""), Contains("with --lora-rank 16 --int8-base, which"));
  CHECK_THAT(refused("5GiB", ""), !Contains("--lora-rank"));
  CHECK_THAT(refused("10GiB", "--lora-rank 8"), Contains("; with --int8-base, which keeps"));
  CHECK_THAT(refused("5GiB", "--lora-rank 8 --int8-base"), !Contains("it fits"));
  // Ranks of --tp that would divide a block of 32 columns cannot have such a base.
  const auto of_ranks = [](const std::string& flags) {
    return run_program("plan", words("--model tinyllama-1.1b --lora-rank 8 --device-profile h200 "
                                     "--batch-size 4 --seq-len 1024 --gpu-memory " +
                                     flags))
        .err;
  };
  CHECK_THAT(of_ranks("1880MiB --tp 16"), Contains("too many") && Contains("with --int8-base"));
  CHECK_THAT(of_ranks("1820MiB --tp 32"), Contains("too many") && !Contains("--int8-base"));
  // Such a training fits indeed.
  CHECK(run_program("plan", words("--model gptj-6b --device-profile h200 --batch-size 4 --seq-len "
                                  "1024 --steps 100 --gpu-memory 10GiB --lora-rank 16 --int8-base"))
            .exit_code == 0);
}

TEST_CASE("what cannot be adapted is refused in one line", "[lora]") {
  const Runs runs;
  REQUIRE(runs.train("run", "tiny", "--lora-rank 2 --steps 1").exit_code == 0);
  const std::string adapter = runs.at("run/model");
  const auto refused = [&](const std::string& flags, const std::string& base = "tiny") {
    const ProgramResult result = runs.train("refused", base, "--steps 1 " + flags);
    INFO(flags << ": " << result.err);
    CHECK(result.exit_code == 2);
    CHECK(count_lines(result.err) == 1);
    CHECK_FALSE(fs::exists(runs.path() / "refused"));
    return result.err;
  };
  CHECK_THAT(refused("--lora-rank 0"), Contains("--lora-rank") && Contains("'0'"));
  CHECK_THAT(refused("--lora-rank 4096"),
             Contains("the rank is 4096, and attn.c_attn is a matrix of"));
  CHECK_THAT(refused("--lora-rank 2 --lora-targets q_proj"),
             Contains("'q_proj' is the name of no layer of this GPT-2, which has attn.c_attn"));
  CHECK_THAT(refused("--lora-alpha 2"), Contains("give --lora-rank too"));
  CHECK_THAT(refused("--int8-base"), Contains("--int8-base is for adapters"));
  CHECK_THAT(refused("--lora-rank 2 --adapter " + adapter),
             Contains("--adapter " + adapter + " decides it"));
  CHECK_THAT(refused("--adapter " + adapter, "llama"),
             Contains("changes attn.c_attn") && Contains("is of another model"));
  CHECK_THAT(refused("--adapter " + runs.at("nothing")), Contains("is no adapter"));
  for (const std::string flags : {"--sequence-parallel", "--lora-dropout 0.1"}) {
    const ProgramResult plan =
        run_program("plan", words("--model gpt2 --tp 2 --lora-rank 2 " + flags));
    CHECK(plan.exit_code == 2);
    CHECK_THAT(plan.err, Contains(flags == "--sequence-parallel" ? flags : "--lora-dropout 0"));
  }
  // GPT-2's heads are 64 wide, and those of this shape 48.
  CHECK(run_program("plan", words("--model gpt2 --tp 2 --lora-rank 2 --int8-base")).exit_code == 0);
  const ProgramResult cut = run_program(
      "plan", words("--n-layer 2 --n-head 4 --n-embd 192 --vocab-size 100 --context 64 --tp 4 "
                    "--lora-rank 2 --int8-base"));
  CHECK(cut.exit_code == 2);
  CHECK_THAT(cut.err,
             Contains("--tp 4: a matrix of 8-bit integers would be divided at column 48") &&
                 Contains("32 neighbouring columns share a scale; use --tp 1, 2, or leave"));
  CHECK_THAT(run_program("plan", words("--model gpt2 --device-profile 3090 --lora-rank 2 "
                                       "--placement offload-all"))
                 .err,
             Contains("the adapters"));
  CHECK_THAT(
      run_program("train_gpt2", words("--lora-rank 2 --steps 1 --output " + runs.at("random"))).err,
      Contains("give --model FOLDER"));

  // An adapter of another model, and of kinds that this program lacks.
  const auto merged = [&](const std::string& folder, const std::string& base) {
    const ProgramResult result = run_program(
        "convert", {"--input", model_of(base), "--merge", folder, "--output", runs.at("merged")});
    CHECK(result.exit_code == 2);
    CHECK_FALSE(fs::exists(runs.path() / "merged"));
    return result.err;
  };
  CHECK_THAT(merged(adapter, "odd"), Contains("of another model"));
  CHECK_THAT(merged(adapter, "llama"), Contains("of another model"));
  struct Change {
    const char *field, *value, *said;
  };
  for (const auto& [field, value, said] :
       {Change{"use_dora", "true", "use_dora is true; DoRA is not supported"},
        {"bias", "\"all\"", "trained biases are not supported"},
        {"rank_pattern", "{\"c_attn\":8}", "rank_pattern is"},
        {"modules_to_save", "[\"lm_head\"]", "modules_to_save is"},
        {"peft_type", "\"IA3\"", "only adapters of the type LORA"},
        {"r", "0", "r is 0"},
        {"r", "\"4\"", "a rank is a whole number from 1"},
        {"r", "8.5", "a rank is a whole number from 1"},
        {"r", "200000000", "from 1 to 16777216"},
        {"lora_dropout", "1", "lora_dropout is 1"},
        {"lora_dropout", "-3", "lora_dropout is -3"},
        {"init_lora_weights", "\"pissa\"", "may change the model's own weights"},
        {"alora_invocation_tokens", "[1]", "alora_invocation_tokens is"},
        {"lora_alpha", "null", "lora_alpha is null; it must be a number"}}) {
    INFO(field << " " << value);
    const fs::path changed = runs.path() / "changed";
    fs::remove_all(changed);
    fs::copy(adapter, changed);
    nlohmann::json config = read_json_file(changed / "adapter_config.json", 1 << 16);
    config[field] = nlohmann::json::parse(value);
    std::ofstream(changed / "adapter_config.json") << config.dump();
    CHECK_THAT(merged(changed.string(), "tiny"), Contains(said));
  }
  // The folder of the adapters is not the place for the model that they become.
  const ProgramResult over = run_program(
      "convert", {"--input", model_of("tiny"), "--merge", adapter, "--output", adapter});
  CHECK(over.exit_code == 2);
  CHECK(fs::exists(adapter + "/adapter_model.safetensors"));
  // probe opens adapters too.
  const Fixture llama(fixture_folders().front(), "llama");
  CHECK_THAT(run_program("probe", {"--model", llama.model().string(), "--adapter", adapter,
                                   "--tokens", llama.token_file().string()})
                 .err,
             Contains("is of another model"));
  // Weights of the same shape that are others: the run cannot go on beside them.
  fs::copy(model_of("tiny"), runs.path() / "other", fs::copy_options::recursive);
  {
    std::fstream weights(runs.path() / "other/model.safetensors",
                         std::ios::in | std::ios::out | std::ios::binary);
    weights.seekp(-1, std::ios::end);
    weights.put(1);
  }
  CHECK_THAT(runs.train("run", "tiny", "--lora-rank 2 --steps 2", runs.at("other")).err,
             Contains("cannot be resumed: its lora is"));
  // A name that is no UTF-8 is a name.
  const std::string odd_name = runs.at("odd\xff");
  fs::copy(model_of("tiny"), odd_name, fs::copy_options::recursive);
  CHECK(runs.train("odd", "tiny", "--lora-rank 2 --steps 1", odd_name).exit_code == 0);
  CHECK(fs::exists(runs.path() / "odd/model/adapter_config.json"));

  // A run whose model has moved, a checkpoint, and a resumed run with another rank.
  fs::copy(adapter, runs.path() / "lost");
  nlohmann::json config = read_json_file(runs.path() / "lost/adapter_config.json", 1 << 16);
  config["base_model_name_or_path"] = "some/name";
  std::ofstream(runs.path() / "lost/adapter_config.json") << config.dump();
  CHECK_THAT(run_program("generate", {"--model", runs.at("lost"), "--tokens", "1 2"}).err,
             Contains("for the model 'some/name', which is no model folder here"));
  CHECK_THAT(run_program("generate",
                         {"--model", runs.at("run/checkpoints/step-00000001"), "--tokens", "1 2"})
                 .err,
             Contains("holds adapters that were being trained, without their model"));
  CHECK_THAT(runs.train("run", "tiny", "--lora-rank 3 --steps 2").err,
             Contains("cannot be resumed: its lora is"));
}

}  // namespace sluice::test::lora_program_test
