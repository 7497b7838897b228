#include <cmath>
#include <nlohmann/json.hpp>

#include "models/decoder/config_json/config_file.h"
#include "models/decoder/config_json/config_writer.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gradcheck.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/one_step.h"
#include "tests/support/training/pipelines.h"

// GPT-2 without biases, and with other activations: --bias=false, --activation.

namespace sluice::test::variant_test {
namespace {

constexpr MlpActivation activations[] = {MlpActivation::gelu, MlpActivation::exact_gelu,
                                         MlpActivation::relu};

Batch some_batch() {
  return {{.tokens = random_ids(4 * 16, 64, 1), .targets = random_ids(4 * 16, 64, 2)}, 0};
}

}  // namespace

TEST_CASE("a GPT-2 without biases is one whose biases are zero", "[variant][ranks]") {
  const ThreadCount one(1);
  const StepLayout layouts[] = {{1, 1, 1, 4},
                                {1, 1, 1, 2, "", false, Recompute::block},
                                {1, 1, 1, 2, "", false, Recompute::gelu_ln},
                                {2, 1, 1, 1},
                                {1, 2, 1, 1},
                                {1, 1, 2, 2},
                                {1, 1, 2, 4, "", true},
                                {1, 1, 1, 1, "layer-major"}};
  for (const MlpActivation activation : activations)
    for (const DType dtype : {DType::f64, DType::f32}) {
      // Initial biases are zero, and other weights are drawn by their names.
      TrainingTask task{.dtype = dtype, .batch_size = 4, .seq_len = 16};
      task.config.activation = activation;
      OneStep expected = one_step(task, task.resident(), some_batch(), DeviceKind::cpu);
      leave_out_biases(task.config);
      // The norm of the gradients has no biases either.
      double squares = 0;
      for (const auto& [name, values] : expected.gradients)
        for (const double value : values)
          squares += name.ends_with(".bias") ? 0 : value * value;
      expected.norm = std::sqrt(squares);
      for (const StepLayout& layout : layouts) {
        const bool gpu = dtype == DType::f32;
        if (gpu && (!have_gpu() || !in_form(4, {&layout - layouts, static_cast<int>(activation)})))
          continue;
        CAPTURE(static_cast<int>(activation), name_of(dtype), layout.text());
        const OneStep actual =
            one_step(task, layout, some_batch(), gpu ? DeviceKind::cuda : DeviceKind::cpu);
        for (const auto& [name, values] : actual.gradients)
          CHECK_FALSE(name.ends_with(".bias"));
        check_close(actual, expected, gpu ? 2e-5 : 1e-12);
      }
    }
}

TEST_CASE("config.json tells of missing biases and of the activation", "[variant]") {
  for (const Family family : {Family::gpt2, Family::gptj, Family::gpt_neox})
    for (const MlpActivation activation : activations) {
      DecoderConfig config = config_of(family);
      config.activation = activation;
      config.n_inner = 3072;
      if (config.rotary) config.rotary->width = 16;
      if (family == Family::gpt2) leave_out_biases(config);
      const auto json = nlohmann::json::parse(config_json(config, "float32", -1));
      CHECK(parse_config(json, "config.json") == config);
      CHECK(json.contains("bias") == (family == Family::gpt2));
    }
  CHECK(
      parse_config(nlohmann::json::parse(config_json({}, "float32", -1)), "config.json").norm_bias);
}

TEST_CASE("a GPT-2 without biases trains, resumes, is exported and makes text", "[variant]") {
  const TempDir dir;
  const std::string run = (dir.path() / "run").string();
  const auto train = [&](const Arguments& more) {
    Arguments all{"--n-layer",       "2",     "--n-head",      "2", "--n-embd",    "32",
                  "--context",       "16",    "--peak-tflops", "1", "--threads",   "1",
                  "--tokenizer",     "bytes", "--batch-size",  "4", "--val-every", "0",
                  "--sample-tokens", "0",     "--output",      run};
    all.insert(all.end(), more.begin(), more.end());
    return run_program("train_gpt2", all);
  };
  const ProgramResult first = train({"--bias=false", "--activation", "relu", "--steps", "4"});
  INFO(first.err);
  REQUIRE(first.exit_code == 0);
  CHECK(train({"--bias=false", "--activation", "relu", "--steps", "6"}).exit_code == 0);
  for (const Arguments& changed :
       {Arguments{"--activation", "relu", "--steps", "8"},
        Arguments{"--bias=false", "--activation", "gelu", "--steps", "8"},
        Arguments{"--steps", "8"}}) {
    const ProgramResult other = train(changed);
    CHECK(other.exit_code == 2);
    CHECK_THAT(other.err, Contains("cannot be resumed: its model is "));
  }
  const DecoderConfig made = read_config(dir.path() / "run/model/config.json");
  CHECK((!made.norm_bias && !made.qkv_bias && made.activation == MlpActivation::relu));
  for (const std::string& model : {run, run + "/checkpoints/step-00000006"})
    CHECK(run_program("generate", {"--model", model, "--prompt", "a", "--max-tokens", "3"})
              .exit_code == 0);
  CHECK(run_program("train_gpt2", {"--model", run + "/model", "--steps", "1", "--peak-tflops", "1",
                                   "--output", run + "2"})
            .exit_code == 0);
  const ProgramResult loaded =
      run_program("train_gpt2", {"--model", run + "/model", "--bias=false", "--steps", "1"});
  CHECK(loaded.exit_code == 2);
  CHECK_THAT(loaded.err, Contains("--bias is for a GPT-2 with random weights; --model " + run));
  CHECK_THAT(
      run_program("train_gpt2", {"--model", "gptj-6b", "--activation", "relu", "--plan"}).err,
      Contains("--activation is for a GPT-2 with random weights; --model gptj-6b decides it"));
}

}  // namespace sluice::test::variant_test
