#include <cmath>
#include <nlohmann/json.hpp>

#include "models/decoder/config_json/config_file.h"
#include "models/decoder/config_json/config_writer.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gradcheck.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"
#include "tests/support/training/one_step.h"
#include "tests/support/training/pipelines.h"

// GPT-2 without biases, and with other activations, from a shape.json.

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

TEST_CASE("a configuration without weights is a shape with random weights", "[variant]") {
  const TempDir dir;
  const std::string run = (dir.path() / "run").string();
  const auto shape = [&](const std::string& name, const char* activation, bool bias) {
    DecoderConfig config{.n_layer = 2, .n_head = 2, .n_embd = 32, .vocab_size = 256};
    config.n_positions = 16;
    config.n_inner = 128;
    auto json = nlohmann::json::parse(config_json(config, "float32", -1));
    json["activation_function"] = activation;
    json["bias"] = bias;
    json["attn_pdrop"] = 0.25;
    json["embd_pdrop"] = json["resid_pdrop"] = 0.0;
    const auto file = dir.path() / name;
    write_file(file, json.dump());
    return file.string();
  };
  const std::string plain = shape("plain.json", "relu", false);
  const auto train = [&](const std::string& model, const std::string& steps) {
    return run_program("train_gpt2", {"--model", model, "--steps", steps, "--peak-tflops", "1",
                                      "--threads", "1", "--tokenizer", "bytes", "--batch-size", "4",
                                      "--val-every", "0", "--sample-tokens", "0", "--output", run});
  };
  const ProgramResult first = train(plain, "4");
  INFO(first.err);
  REQUIRE(first.exit_code == 0);
  CHECK(train(plain, "6").exit_code == 0);
  for (const std::string& other :
       {shape("bias.json", "relu", true), shape("gelu.json", "gelu_new", false)}) {
    const ProgramResult result = train(other, "8");
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Contains("cannot be resumed: its model is "));
  }
  const DecoderConfig made = read_config(dir.path() / "run/model/config.json");
  CHECK((!made.norm_bias && !made.qkv_bias && made.activation == MlpActivation::relu));
  CHECK(made.dropout.attention == 0.25);
  CHECK(made.dropout.residual == 0);
  for (const std::string& model : {run, run + "/checkpoints/step-00000006"})
    CHECK(run_program("generate", {"--model", model, "--prompt", "a", "--max-tokens", "3"})
              .exit_code == 0);
  CHECK(run_program("train_gpt2", {"--model", run + "/model", "--steps", "1", "--peak-tflops", "1",
                                   "--output", run + "2"})
            .exit_code == 0);
  const auto refused = [&](const Arguments& flags) {
    const ProgramResult result = run_program("train_gpt2", flags);
    CHECK(result.exit_code == 2);
    return result.err;
  };
  CHECK_THAT(refused({"--model", (dir.path() / "no.json").string()}), Contains("is neither a"));
  write_file(dir.path() / "list.json", "[]");
  CHECK_THAT(refused({"--model", (dir.path() / "list.json").string()}), Contains("list.json"));
  CHECK_THAT(refused({"--model", plain, "--bias=false"}),
             Contains("did you mean --model shape.json?"));
}

}  // namespace sluice::test::variant_test
