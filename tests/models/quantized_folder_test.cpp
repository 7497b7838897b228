#include "models/decoder/quantized_folder.h"

#include <nlohmann/json.hpp>

#include "models/decoder/weights.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/space.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::quantized_folder_test {

TEST_CASE("a config.json that says that the weights are quantised is refused with its method") {
  const auto refusal = [](const char* text) {
    return error_message([&] { refuse_quantized(Json::parse(text), "a/config.json"); });
  };
  for (const std::string method :
       {"gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors", "mxfp4", "what comes next"})
    CHECK_THAT(
        refusal(
            (R"({"quantization_config": {"bits": 4, "quant_method": ")" + method + "\"}}").c_str()),
        StartsWith("a/config.json: \"quantization_config\" has the quant_method \"" + method +
                   "\"; quantised weights are not supported"));
  CHECK_THAT(refusal(R"({"quantization_config": {"load_in_8bit": true}})"),
             Contains(R"("quantization_config" is {"load_in_8bit":true})"));
  CHECK_THAT(refusal(R"({"compression_config": {"quant_method": "sparseml"}})"),
             Contains(R"("compression_config" has the quant_method "sparseml")"));
  for (const char* const plain : {R"({"quantization_config": null})", "{}", "[]",
                                  R"({"quantization_config": {}, "model_type": "llama"})"})
    CHECK(refusal(plain) == "(no error)");
}

TEST_CASE("tensors of a quantised model are recognised where config.json says nothing") {
  const TempDir dir;
  const DevicePtr device = make_cpu_device();
  write_model(dir.path());
  const DecoderConfig config = small_config();
  const Weights plain = weights_of(*open_model(dir.path(), device).space);
  for (const std::string name :
       {"h.0.mlp.c_fc.qweight", "h.0.mlp.c_fc.qzeros", "h.1.mlp.c_fc.weight_packed",
        "h.0.mlp.c_fc.weight_scale_inv", "h.0.mlp.c_fc.weight.absmax", "h.0.mlp.c_fc.SCB"}) {
    Weights weights = plain;
    weights["transformer." + name] = {Shape{2}, {1, 2}};
    write_weights(dir.path() / "model.safetensors", weights, StoredType::F16);
    CHECK_THAT(error_message([&] { check_weights(dir.path(), config); }),
               Contains("model.safetensors: tensor \"transformer." + name +
                        "\" of type F16 belongs to a quantised model"));
  }
}

TEST_CASE("an unknown tensor is shown under the name that its file has") {
  const TempDir dir;
  const DevicePtr device = make_cpu_device();
  write_model(dir.path());
  Weights weights = weights_of(*open_model(dir.path(), device).space);
  for (const std::string name : {"transformer.h.0.attn.extra", "h.0.attn.extra"}) {
    Weights more = weights;
    more[name] = {Shape{2}, {1, 2}};
    write_weights(dir.path() / "model.safetensors", more);
    CHECK_THAT(error_message([&] { check_weights(dir.path(), small_config()); }),
               Contains(": tensor \"" + name + "\" does not belong to a GPT-2 of 2 layers"));
  }
  weights["transformer.ln_f.bias"] = weights.at("ln_f.bias");
  write_weights(dir.path() / "model.safetensors", weights);
  CHECK_THAT(error_message([&] { check_weights(dir.path(), small_config()); }),
             Contains("\"transformer.ln_f.bias\" is there twice"));
}

}  // namespace sluice::test::quantized_folder_test
