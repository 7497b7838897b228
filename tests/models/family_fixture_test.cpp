#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/autograd.h"
#include "engine/io/token_file.h"
#include "models/decoder/generate.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gradcheck.h"

// Families other than GPT-2, against references that share no code with this program.

namespace sluice::test::family_fixture_test {
namespace {

namespace fs = std::filesystem;

/// The models of these families in every folder of fixtures.
std::vector<std::pair<std::string, std::string>> fixtures() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const std::string& folder : fixture_folders())
    for (const char* const name : {"llama", "llama3-rope", "qwen2", "qwen3", "gptj", "gpt_neox"})
      if (fs::exists(fs::path(folder) / name / "config.json")) all.emplace_back(folder, name);
  return all;
}

struct FirstBatch {
  DevicePtr device;
  TestModel loaded;
  Tensor inputs;
  double loss = 0;

  FirstBatch(const Fixture& fixture, DeviceKind kind, DType dtype)
      : device(open_device(kind)), loaded(open_model(fixture.model(), device, dtype)) {
    const Shape shape{fixture.hyper("batch"), fixture.hyper("seq")};
    TokenFile file(fixture.token_file());
    std::vector<std::int32_t> ids(static_cast<std::size_t>(element_count(shape)) + 1);
    file.read(0, ids);
    inputs = Tensor::from_tokens(device, shape, std::span(ids).first(ids.size() - 1));
    const Tensor targets = Tensor::from_tokens(device, shape, std::span(ids).subspan(1));
    const auto result = loaded.model->loss(
        inputs, targets, {.scale = 1.0 / static_cast<double>(element_count(shape))});
    loss = result.loss.item();
    backward(result.loss);
    loaded.space->zero_unused_gradients();
  }

  Values logits() const {
    const NoGrad no_grad;
    return loaded.model->logits(loaded.model->hidden(inputs)).to_host();
  }

  void check_gradients(const Fixture& fixture, double bound) const {
    for (const auto& slot : loaded.space->slots())
      for (const StoredSlice& slice : slot.stored()) {
        INFO(slice.name);
        // A key's bias shifts the scores of near positions alike, so its gradient is a small
        // difference of large numbers.
        const bool keys =
            slice.name.ends_with("k_proj.bias") || slice.name.ends_with("query_key_value.bias");
        const double slack = keys ? 3 : 1;
        CHECK(relative_l2(slot.tensor->grad().slice(slice.first, slice.shape).to_host(),
                          fixture.values("grad." + slice.name)) <= slack * bound);
      }
  }
};

}  // namespace

TEST_CASE("every family in fp32 gives the reference's logits, loss and gradients") {
  const ThreadCount one(1);
  REQUIRE(fixtures().size() >= 5);
  const auto [folder, name] = GENERATE(from_range(fixtures()));
  const Fixture fixture(folder, name);
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  INFO(folder << "/" << name << " on " << name_of(kind));
  const FirstBatch batch(fixture, kind, DType::f32);
  CHECK(worst_difference(batch.logits(), fixture.values("logits")) <= 2e-5);
  CHECK(std::abs(batch.loss - fixture.json().at("loss").get<double>()) <= 1e-5);
  batch.check_gradients(fixture, 1e-5);
}

TEST_CASE("every family in 16 bits stays as near to the reference as 16 bits can be") {
  const ThreadCount one(1);
  const auto [folder, name] = GENERATE(from_range(fixtures()));
  const Fixture fixture(folder, name);
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  INFO(folder << "/" << name << " on " << name_of(kind));
  const FirstBatch batch(fixture, kind, DType::bf16);
  CHECK(relative_l2(batch.logits(), fixture.values("logits")) <= 3.6e-2);
  CHECK(std::abs(batch.loss - fixture.json().at("loss").get<double>()) <= 1.5e-2);
  batch.check_gradients(fixture, 7.2e-2);
}

TEST_CASE("every family continues greedily as its reference does, with and without a cache") {
  const ThreadCount one(1);
  const auto [folder, name] = GENERATE(from_range(fixtures()));
  const bool use_cache = GENERATE(true, false);
  const Fixture fixture(folder, name);
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  INFO(folder << "/" << name << ", cache " << use_cache << " on " << name_of(kind));
  const auto device = open_device(kind);
  const auto loaded =
      open_model(fixture.model(), device, DType::f32, ParameterSpace::Use::inference);
  const auto& greedy = fixture.json().at("greedy");
  const auto& holder = greedy.is_object() ? greedy : fixture.json();
  const auto prompt = holder.at("prompt").get<std::vector<std::int32_t>>();
  const auto expected =
      (greedy.is_object() ? greedy.at("ids") : greedy).get<std::vector<std::int32_t>>();
  const auto made = generate(*loaded.model, device, prompt,
                             {.max_tokens = static_cast<std::int64_t>(expected.size()),
                              .sampling = {.temperature = 0},
                              .use_cache = use_cache});
  CHECK(made == expected);
}

}  // namespace sluice::test::family_fixture_test
