#include <filesystem>

#include "engine/autograd.h"
#include "engine/ops/linear/quantized_matrix.h"
#include "kernels/quantized.h"
#include "models/decoder/shard.h"
#include "models/decoder/weights.h"
#include "models/lora/frozen_weights.h"
#include "models/lora/targets.h"
#include "tests/models/adapted_models.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/temp_dir.h"

// Adapters beside a model whose matrices are kept as 8-bit integers.

namespace sluice::test::int8_base_test {
namespace {

/// No layer gets an adapter: only the base counts.
const LoraConfig beside_8_bits{.rank = 1, .alpha = 1, .targets = {"x"}, .int8_base = true};

/// Gives the weights random values and saves them to a folder of the model's family.
std::filesystem::path saved(const TempDir& dir, const DecoderConfig& config,
                            ParameterSpace& weights) {
  randomize(weights, 1);
  const std::filesystem::path folder = dir.path() / std::string(name_of(config.family));
  std::filesystem::create_directory(folder);
  save_weights(folder / "model.safetensors", weights, StoredType::F32);
  return folder;
}

}  // namespace

TEST_CASE("beside a base of 8 bits adapters compute what its values give", "[lora]") {
  const ThreadCount one(1);
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  const auto device = open_device(kind);
  const DType wide = kind == DeviceKind::cpu ? DType::f64 : DType::f32;
  const auto ids = random_ids(2 * 12, 40, 1), next = random_ids(2 * 12, 40, 2);
  for (const std::string family : {"gpt2", "llama", "qwen3", "gptj", "gpt_neox"})
    for (const auto& [dtype, spec] :
         {std::pair{wide, "all"}, {DType::bf16, "all"}, {wide, "attention"}}) {
      CAPTURE(name_of(kind), family, name_of(dtype), spec);
      DecoderConfig config = config_for(family);
      config.lora = {.rank = 3, .alpha = 2, .targets = lora_targets(config, spec)};
      // Without adapters at its MLP the other model computes that as one op, with other roundings.
      const double bound = spec == std::string("all") ? 0 : dtype == DType::f64 ? 1e-12 : 1e-5;
      Adapted plain(config, device, dtype);
      config.lora.int8_base = true;
      Decoder model(config);
      FrozenWeights frozen(model, {{0, config.n_layer}}, device, dtype);
      ParameterSpace space(model.parameters(), device, dtype, ParameterSpace::Use::training);
      randomize(space, 100);
      for (const auto& slot : frozen.plain().slots())
        frozen.plain().write_weights(slot.offset, bytes_of(*plain.frozen.find(slot.name)->tensor));
      REQUIRE(frozen.quantized() != nullptr);
      CHECK(frozen.quantized()->slots().size() == 8);
      for (const auto& slot : frozen.quantized()->slots()) {
        const auto* const of_plain = plain.frozen.find(slot.name);
        const auto cpu = make_cpu_device();
        std::vector<std::byte> rows =
            bytes_of(Tensor::from_host(cpu, slot.shape, DType::f32, of_plain->tensor->to_host()));
        REQUIRE(frozen.quantized()->write_rows(slot, 0, rows));
        const Tensor values = slot.quantized->dequantized(dtype);
        CHECK(relative_l2(values.to_host(), of_plain->tensor->to_host()) < 0.01);
        CHECK(values.to_host() != of_plain->tensor->to_host());
        plain.frozen.write_weights(of_plain->offset, bytes_of(values));
      }
      const auto loss_of = [&](const Decoder& of) {
        return of
            .loss(Tensor::from_tokens(device, {2, 12}, ids),
                  Tensor::from_tokens(device, {2, 12}, next), {.scale = 1.0 / 24})
            .loss;
      };
      for (const Recompute mode : {Recompute::none, Recompute::block}) {
        model.set_recompute({mode, mode});
        const Tensor loss = loss_of(model), expected = loss_of(plain.model);
        CHECK(std::abs(loss.item() - expected.item()) <= bound);
        for (const KeptTensor& kept : kept_tensors(loss))
          CHECK_FALSE((kept.node == "linear" && kept.saved.name == "weight"));
        space.forget_gradients();
        plain.space.forget_gradients();
        backward(loss);
        backward(expected);
        for (const auto& slot : space.slots())
          CHECK(relative_l2(slot.tensor->grad().to_host(),
                            plain.space.find(slot.name)->tensor->grad().to_host()) <= bound);
      }
    }
}

TEST_CASE("a base of 8 bits is read from a model's file row by row", "[lora]") {
  const TempDir dir;
  for (const Family family : {Family::gpt2, Family::llama}) {
    DecoderConfig config = config_for(family == Family::gpt2 ? "gpt2" : "llama");
    config.n_layer = 1;
    config.n_embd = 500;    // 15 blocks of 32 and one of 20
    config.n_inner = 2200;  // more than a million elements, which are read in two pieces
    const auto device = make_cpu_device();
    Decoder plain(config);
    ParameterSpace weights(plain.parameters(), device, DType::f32, ParameterSpace::Use::inference);
    const std::filesystem::path folder = saved(dir, config, weights);
    config.lora = beside_8_bits;
    Decoder model(config);
    FrozenWeights frozen(model, {{0, 1}}, device, DType::f32);
    frozen.load(folder, config);
    CHECK(frozen.quantized()->slots().size() == 4);
    double bytes = 0;
    for (const auto& slot : frozen.plain().slots()) {
      bytes += static_cast<double>(slot.tensor->bytes());
      CHECK((slot.tensor->to_host() == weights.find(slot.name)->tensor->to_host()));
    }
    for (const auto& slot : frozen.quantized()->slots()) {
      CAPTURE(slot.name);
      const Tensor values = *weights.find(slot.name)->tensor;
      const QuantizedMatrix wanted = QuantizedMatrix::zeros(device, slot.shape[0], slot.shape[1]);
      launch_cpu(Quantize{
          .codes = wanted.codes.view(), .scales = wanted.scales.view(), .in = values.view()});
      CHECK((bytes_of(slot.quantized->codes) == bytes_of(wanted.codes)));
      CHECK((bytes_of(slot.quantized->scales) == bytes_of(wanted.scales)));
      bytes += static_cast<double>(wanted.codes.bytes() + wanted.scales.bytes());
    }
    CHECK(frozen_bytes(model, {{0, 1}}, DType::f32) == bytes);
    // This value is beyond what a scale in f16 can stand for.
    const float large = 1e7f;
    const auto& slot = weights.slots()[family == Family::gpt2 ? 2 : 1];
    weights.write_weights(slot.offset, std::as_bytes(std::span(&large, 1)));
    save_weights(folder / "model.safetensors", weights, StoredType::F32);
    CHECK_THAT(error_message([&] { frozen.load(folder, config); }),
               Contains("model.safetensors: tensor \"" + slot.stored()[0].name +
                        "\" has values above 8.32e+06, "));
  }
}

TEST_CASE("a base of 8 bits begins with the values that other weights begin with", "[lora]") {
  DecoderConfig config = config_for("llama");
  config.n_layer = 1;
  config.n_embd = 500;
  config.n_inner = 2200;  // more than a million elements, which are made in two pieces
  const auto device = make_cpu_device();
  Decoder plain(config);
  ParameterSpace weights(plain.parameters(), device, DType::f32, ParameterSpace::Use::inference);
  weights.initialize(5);
  config.lora = beside_8_bits;
  Decoder model(config);
  FrozenWeights frozen(model, {{0, 1}}, device, DType::f32);
  frozen.initialize(5);
  for (const auto& slot : frozen.quantized()->slots()) {
    CAPTURE(slot.name);
    CHECK(relative_l2(slot.quantized->dequantized(DType::f32).to_host(),
                      weights.find(slot.name)->tensor->to_host()) < 0.01);
  }
}

TEST_CASE("ranks read their shards of a base of 8 bits", "[lora]") {
  const TempDir dir;
  const auto device = make_cpu_device();
  for (const Family family : {Family::gpt2, Family::llama}) {
    DecoderConfig config = config_for(family == Family::gpt2 ? "gpt2" : "llama");
    config.n_layer = 1;
    config.n_embd = 512;
    config.n_inner = 2304;  // more than a million elements, which are read in two pieces
    Decoder plain(config);
    ParameterSpace weights(plain.parameters(), device, DType::f32, ParameterSpace::Use::inference);
    const std::filesystem::path folder = saved(dir, config, weights);
    config.lora = beside_8_bits;
    Decoder model(config);
    FrozenWeights whole(model, {{0, 1}}, device, DType::f32);
    whole.load(folder, config);
    for (const int rank : {0, 1}) {
      Decoder shard(config, {.rank = rank, .size = 2});
      FrozenWeights part(shard, {{0, 1}}, device, DType::f32);
      part.load(folder, config);
      REQUIRE(part.quantized()->slots().size() == 4);
      for (std::size_t i = 0; i < 4; ++i) {
        const auto& slot = part.quantized()->slots()[i];
        CAPTURE(slot.name, rank);
        REQUIRE(slot.shard.divided());
        Values mine;
        const Values all =
            whole.quantized()->slots()[i].quantized->dequantized(DType::f32).to_host();
        slot.shard.for_each_run(0, slot.size, [&](auto, std::int64_t index, std::int64_t count) {
          mine.insert(mine.end(), all.begin() + index, all.begin() + index + count);
        });
        CHECK((slot.quantized->dequantized(DType::f32).to_host() == mine));
      }
    }
  }
}

TEST_CASE("ranks that would cut a block of 8 bits are refused, whichever matrix it is in",
          "[lora]") {
  // Heads of 32 columns, which two or four ranks divide between blocks.
  const auto fault = [](Family family, std::int64_t inner, int ranks) {
    DecoderConfig config = config_for(family == Family::gpt2 ? "gpt2" : "llama");
    config.n_embd = 128;
    config.n_inner = inner;
    config.lora = beside_8_bits;
    return division_fault(config, ranks);
  };
  for (const Family family : {Family::gpt2, Family::llama}) {
    CAPTURE(name_of(family));
    for (const int ranks : {1, 2, 4})
      CHECK(fault(family, 256, ranks) == "");
    // Only the MLP is divided within a block: into two parts of 96 columns, or four of 48.
    CHECK(fault(family, 192, 2) == "");
    CHECK_THAT(fault(family, 192, 4), Contains("divided at column 48") && Contains("--tp 1, 2, "));
    CHECK_THAT(fault(family, 80, 2), Contains("divided at column 40") && Contains("--tp 1, or"));
  }
}

}  // namespace sluice::test::int8_base_test
