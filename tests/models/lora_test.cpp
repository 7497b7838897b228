#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/autograd.h"
#include "models/decoder/decoder.h"
#include "models/decoder/weights.h"
#include "models/lora/adapter_file.h"
#include "models/lora/merge_adapter.h"
#include "models/lora/targets.h"
#include "tests/models/adapted_models.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"
#include "tests/support/temp_dir.h"

// A model with adapters computes what the model with the changed weights computes, and the
// gradients of A and B follow from those of the changed weights: with W + s B A in the place of W,
// dA = s B^T dW and dB = s dW A^T.

namespace sluice::test::lora_test {
namespace {

/// A matrix [rows, columns] in row-major order.
struct Matrix {
  std::int64_t rows, columns;
  Values values;
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out{a.rows, b.columns, Values(static_cast<std::size_t>(a.rows * b.columns))};
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t k = 0; k < a.columns; ++k)
      for (std::int64_t j = 0; j < b.columns; ++j)
        out.values[static_cast<std::size_t>(i * b.columns + j)] +=
            a.values[static_cast<std::size_t>(i * a.columns + k)] *
            b.values[static_cast<std::size_t>(k * b.columns + j)];
  return out;
}

Matrix transpose(const Matrix& a) {
  Matrix out{a.columns, a.rows, Values(a.values.size())};
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < a.columns; ++j)
      out.values[static_cast<std::size_t>(j * a.rows + i)] =
          a.values[static_cast<std::size_t>(i * a.columns + j)];
  return out;
}

/// Cuts a slot's values into the tensors that files have of it.
void add_slices(std::map<std::string, Matrix>& all, const ParameterSpace::Slot& slot,
                const Values& values) {
  for (const StoredSlice& slice : slot.stored()) {
    if (slice.shape.size() != 2) continue;
    const auto from = values.begin() + slice.first;
    all[slice.name] = {
        slice.shape[0], slice.shape[1], {from, from + slice.shape[0] * slice.shape[1]}};
  }
}

std::map<std::string, Matrix> weights_of(const ParameterSpace& space) {
  std::map<std::string, Matrix> all;
  for (const auto& slot : space.slots())
    add_slices(all, slot, flat_weights(space).slice(slot.offset, {slot.size}).to_host());
  return all;
}

std::map<std::string, Matrix> gradients_of(const ParameterSpace& space) {
  std::map<std::string, Matrix> all;
  for (const auto& slot : space.slots())
    add_slices(all, slot, slot.tensor->grad().to_host());
  return all;
}

}  // namespace

TEST_CASE("adapters compute what the changed weights compute, forward and backward", "[lora]") {
  const ThreadCount one(1);
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  const auto device = open_device(kind);
  const DType dtype = kind == DeviceKind::cpu ? DType::f64 : DType::f32;
  const double bound = kind == DeviceKind::cpu ? 1e-11 : 2e-5;
  for (const std::string family : {"gpt2", "llama", "qwen3", "gptj", "gpt_neox"})
    for (const std::string spec : {"all", "attention", "mlp", "some"}) {
      if (kind != DeviceKind::cpu &&
          !in_form(3, {static_cast<int>(family.size()), static_cast<int>(spec.size())}))
        continue;
      CAPTURE(name_of(kind), family, spec);
      DecoderConfig config = config_for(family);
      const std::string some = family == "gpt2"       ? "mlp.c_proj"
                               : family == "gpt_neox" ? "dense"
                                                      : "k_proj,v_proj";
      config.lora = {
          .rank = 3, .alpha = 2, .targets = lora_targets(config, spec == "some" ? some : spec)};
      Adapted adapted(config, device, dtype);
      Decoder plain(config.without_adapters());
      ParameterSpace changed(plain.parameters(), device, dtype, ParameterSpace::Use::training);
      set_weights(changed, flat_weights(adapted.frozen));
      // W + s B A, written back in the form in which the model stores it.
      const double scale = config.lora.scale();
      const std::string prefix = adapted.model.names().adapter_prefix();
      auto matrices = weights_of(adapted.space);
      std::size_t pairs = 0;
      for (const auto& slot : changed.slots())
        for (const StoredSlice& slice : slot.stored()) {
          if (!slice.name.ends_with(".weight")) continue;
          const std::string layer = prefix + slice.name.substr(0, slice.name.size() - 7);
          if (!matrices.contains(layer + ".lora_A.weight")) continue;
          ++pairs;
          Matrix change =
              product(matrices.at(layer + ".lora_B.weight"), matrices.at(layer + ".lora_A.weight"));
          if (slot.in_out) change = transpose(change);
          Values sum = flat_weights(changed)
                           .slice(slot.offset + slice.first, {change.rows * change.columns})
                           .to_host();
          for (std::size_t i = 0; i < sum.size(); ++i)
            sum[i] += scale * change.values[i];
          changed.write_weights(
              slot.offset + slice.first,
              bytes_of(Tensor::from_host(make_cpu_device(), slice.shape, dtype, sum)));
        }
      CHECK(2 * pairs == matrices.size());
      CHECK(pairs == config.lora.targets.size() * 2);

      const auto ids = random_ids(2 * 12, 40, 1), next = random_ids(2 * 12, 40, 2);
      const auto loss_of = [&](const Decoder& model) {
        return model
            .loss(Tensor::from_tokens(device, {2, 12}, ids),
                  Tensor::from_tokens(device, {2, 12}, next), {.scale = 1.0 / 24})
            .loss;
      };
      const Tensor loss = loss_of(adapted.model), expected = loss_of(plain);
      CHECK(loss.item() == Approx(expected.item()).epsilon(bound));
      backward(loss);
      backward(expected);
      for (const auto& slot : adapted.frozen.slots())
        CHECK_FALSE(slot.tensor->grad());
      auto full = gradients_of(changed);
      for (const auto& [name, gradient] : gradients_of(adapted.space)) {
        CAPTURE(name);
        const bool is_a = name.ends_with(".lora_A.weight");
        const std::string layer = name.substr(0, name.size() - 14);
        const auto slot = std::ranges::find_if(changed.slots(), [&](const auto& candidate) {
          for (const StoredSlice& slice : candidate.stored())
            if (prefix + slice.name == layer + ".weight") return true;
          return false;
        });
        REQUIRE(slot != changed.slots().end());
        Matrix of_weight = full.at(layer.substr(prefix.size()) + ".weight");
        if (slot->in_out) of_weight = transpose(of_weight);
        Matrix wanted = is_a ? product(transpose(matrices.at(layer + ".lora_B.weight")), of_weight)
                             : product(of_weight, transpose(matrices.at(layer + ".lora_A.weight")));
        for (double& value : wanted.values)
          value *= scale;
        CHECK(relative_l2(gradient.values, wanted.values) <= bound * 10);
      }
    }
}

TEST_CASE("a large matrix is merged piece by piece, in either layout", "[lora]") {
  const TempDir dir;
  for (const Family family : {Family::gpt2, Family::gptj}) {
    DecoderConfig config = config_for(family == Family::gpt2 ? "gpt2" : "gptj");
    config.n_layer = 1;
    config.n_embd = 512;
    config.n_inner = 9000;  // 4.6M elements, of which a piece has 4.2M
    config.lora = {.rank = 3, .alpha = 9, .targets = lora_targets(config, "mlp")};
    const auto device = make_cpu_device();
    Decoder adapted(config), plain(config.without_adapters());
    ParameterSpace adapters(adapted.parameters(), device, DType::f32,
                            ParameterSpace::Use::inference);
    ParameterSpace weights(plain.parameters(), device, DType::f32, ParameterSpace::Use::inference);
    randomize(adapters, 1);
    const std::filesystem::path folder = dir.path() / std::string(name_of(family));
    std::filesystem::create_directory(folder);
    std::ofstream(folder / adapter_config_file) << adapter_config_json(config, "");
    save_weights(folder / adapter_weights_file, adapters, StoredType::F32);
    CHECK(merge_adapter(folder, plain.config(), weights, DType::f32) < 1e-6);
    // The weights were zeros, so each of them is its change.
    auto pairs = weights_of(adapters);
    std::size_t merged = 0;
    for (const auto& slot : weights.slots()) {
      const std::string layer =
          adapted.names().adapter_prefix() + slot.name.substr(0, slot.name.rfind(".weight"));
      if (!pairs.contains(layer + ".lora_A.weight")) continue;
      ++merged;
      CAPTURE(layer);
      Matrix change =
          product(pairs.at(layer + ".lora_B.weight"), pairs.at(layer + ".lora_A.weight"));
      if (slot.in_out) change = transpose(change);
      for (double& value : change.values)
        value *= 3;
      CHECK(relative_l2(slot.tensor->to_host(), change.values) < 1e-6);
    }
    CHECK(merged == 2);
  }
}

TEST_CASE("targets are the ends of layers' names, as PEFT has them", "[lora]") {
  const DecoderConfig gpt2 = config_of(Family::gpt2), llama = config_of(Family::llama);
  CHECK(lora_targets(gpt2, "attention") == std::vector<std::string>{"attn.c_attn", "attn.c_proj"});
  CHECK(lora_targets(llama, "mlp") ==
        std::vector<std::string>{"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"});
  CHECK(lora_targets(llama, "all").size() == 7);
  const LoraConfig some{.rank = 1, .targets = lora_targets(gpt2, "c_proj,attn.c_attn")};
  CHECK(some.adapts("h.0.attn.c_proj"));
  CHECK(some.adapts("h.11.mlp.c_proj"));
  CHECK(some.adapts("h.3.attn.c_attn"));
  CHECK_FALSE(some.adapts("h.3.mlp.c_fc"));
  CHECK_FALSE(some.adapts("h.3.mlp.my_c_proj"));
  CHECK_FALSE(LoraConfig().adapts("h.0.attn.c_proj"));
  for (const char* wrong : {"q_proj", "", "c_attn,", "proj", "all,mlp"})
    CHECK_THROWS_AS(lora_targets(gpt2, wrong), Error);
  DecoderConfig config = gpt2;
  config.lora = {.rank = 768, .alpha = 1, .targets = {"c_attn"}};
  require_lora_fits(config, "it");
  config.lora.rank = 769;
  CHECK_THROWS_AS(require_lora_fits(config, "it"), Error);
  config.lora = {.rank = 1, .alpha = 1, .targets = {"c_attn", "q_proj"}};
  CHECK_THROWS_AS(require_lora_fits(config, "it"), Error);
  // The k projection (two heads of width 8) has fewer outputs than inputs.
  DecoderConfig grouped = config_for("llama");
  grouped.lora = {.rank = 16, .alpha = 1, .targets = {"k_proj"}};
  require_lora_fits(grouped, "it");
  grouped.lora.rank = 17;
  CHECK_THROWS_AS(require_lora_fits(grouped, "it"), Error);
}

TEST_CASE("rank-stabilised adapters are scaled by the root of the rank", "[lora]") {
  const TempDir dir;
  DecoderConfig config = config_for("gpt2");
  for (const std::int64_t rank : {1, 4, 6}) {
    config.lora = {.rank = rank, .alpha = 3, .targets = lora_targets(config, "mlp")};
    Decoder model(config);
    ParameterSpace adapters(model.parameters(), make_cpu_device(), DType::f32,
                            ParameterSpace::Use::inference);
    save_weights(dir.path() / adapter_weights_file, adapters, StoredType::F32);
    nlohmann::json json = nlohmann::json::parse(adapter_config_json(config, ""));
    const auto scale = [&](bool stabilised) {
      json["use_rslora"] = stabilised;
      std::ofstream(dir.path() / adapter_config_file) << json;
      return read_adapter(dir.path()).lora.scale();
    };
    CAPTURE(rank);
    CHECK(scale(false) == Approx(3.0 / static_cast<double>(rank)));
    CHECK(scale(true) == Approx(3 / std::sqrt(static_cast<double>(rank))));
  }
}

TEST_CASE("an adapter of some layers alone is merged unless the others would be random", "[lora]") {
  const TempDir dir;
  DecoderConfig config = config_for("llama");
  config.lora = {.rank = 1, .alpha = 2, .targets = {"q_proj", "up_proj"}};
  const auto device = make_cpu_device();
  Decoder adapted(config), plain(config.without_adapters());
  ParameterSpace adapters(adapted.parameters(), device, DType::f32, ParameterSpace::Use::inference);
  ParameterSpace weights(plain.parameters(), device, DType::f32, ParameterSpace::Use::inference);
  randomize(adapters, 1);
  Weights all;
  for (const auto& slot : adapters.slots())
    for (const StoredSlice& slice : slot.stored())
      if (slice.name.find(".layers.1.mlp.up_proj.") == std::string::npos)
        all[slice.name] = {slice.shape,
                           Values(static_cast<std::size_t>(element_count(slice.shape)), 0.5)};
  write_weights(dir.path() / adapter_weights_file, all);
  const auto merge = [&](const char* start) {
    nlohmann::json json = nlohmann::json::parse(adapter_config_json(config, ""));
    json["init_lora_weights"] = nlohmann::json::parse(start);
    std::ofstream(dir.path() / adapter_config_file) << json.dump();
    return error_message([&] { merge_adapter(dir.path(), plain.config(), weights, DType::f32); });
  };
  // A run that goes on with the adapter reads it so.
  const auto read = [&] {
    return error_message([&] { read_adapter(dir.path(), plain.config()); });
  };
  CHECK(merge("true") == "(no error)");
  CHECK(read() == "(no error)");
  CHECK(merge("\"gaussian\"") == "(no error)");
  for (const char* const start : {"false", "null", "\"orthogonal\""})
    CHECK_THAT(merge(start),
               Contains("layers.1.mlp.up_proj.lora_A.weight\" is missing, and by "
                        "init_lora_weights of adapter_config.json it would be random"));
  CHECK_THAT(read(), Contains("it would be random"));
}

}  // namespace sluice::test::lora_test
