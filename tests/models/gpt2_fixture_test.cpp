#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/autograd.h"
#include "models/decoder/generate.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"

namespace sluice::test::gpt2_fixture_test {
namespace {

/// One forward and backward pass of a fixture's first batch.
struct FirstBatch {
  DevicePtr device;
  double loss_scale;  ///< f16 loses small gradients without one
  TestModel loaded;
  Tensor inputs, targets;
  Values losses;
  double loss = 0;

  FirstBatch(const Fixture& fixture, DeviceKind kind, DType dtype)
      : device(open_device(kind)),
        loss_scale(dtype == DType::f16 ? 1024 : 1),
        loaded(open_model(fixture.model(), device, dtype)) {
    const Shape shape{fixture.hyper("batch"), fixture.hyper("seq")};
    inputs = Tensor::from_tokens(device, shape, fixture.ids("input_ids"));
    targets = Tensor::from_tokens(device, shape, fixture.ids("targets"));
    const auto result = loaded.model->loss(
        inputs, targets,
        {.scale = 1.0 / static_cast<double>(element_count(shape)), .loss_scale = loss_scale});
    loss = result.loss.item();
    losses = result.losses.to_host();
    backward(result.loss);
    loaded.space->zero_unused_gradients();
  }

  Values logits() const {
    const NoGrad no_grad;
    return loaded.model->logits(loaded.model->hidden(inputs)).to_host();
  }

  Values gradient(const ParameterSpace::Slot& slot) const {
    Values values = slot.tensor->grad().to_host();
    for (double& value : values)
      value /= loss_scale;
    return values;
  }
};

void check_gradients(const Fixture& fixture, const FirstBatch& batch, double bound) {
  for (const auto& slot : batch.loaded.space->slots()) {
    const double off = relative_l2(batch.gradient(slot), fixture.values("grad." + slot.name));
    INFO(slot.name);
    CHECK(off <= bound);
  }
}

}  // namespace

TEST_CASE("GPT-2 in fp32 gives the reference's logits, losses and gradients") {
  const ThreadCount one(1);
  const std::string name = GENERATE("tiny", "tiny-bf16", "tiny-prefixed", "odd");
  const std::string folder = GENERATE(from_range(fixture_folders()));
  const Fixture fixture(folder, name);
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  INFO(folder << "/" << name << " on " << name_of(kind));
  const FirstBatch batch(fixture, kind, DType::f32);
  CHECK(worst_difference(batch.logits(), fixture.values("logits")) <= 2e-5);
  CHECK(std::abs(batch.loss - fixture.json().at("loss").get<double>()) <= 1e-5);
  CHECK(worst_difference(batch.losses, fixture.json().at("loss_per_token").get<Values>()) <= 2e-5);
  const double norm = fixture.json().at("grad_norm").get<double>();
  batch.loaded.space->clip_gradients(0);
  CHECK(std::abs(batch.loaded.space->gradient_norm() / norm - 1) <= 1e-5);
  check_gradients(fixture, batch, 1e-5);
}

TEST_CASE("GPT-2 in 16 bits stays as near to the reference as 16 bits can be") {
  const ThreadCount one(1);
  struct Row {
    DType dtype;
    double logits, loss, gradients;
  };
  // Twice what rounding the operands of matrix products to bf16 costs; f16 has 8 times finer steps.
  const Row row =
      GENERATE(Row{DType::bf16, 8e-2, 3.6e-3, 1.8e-2}, Row{DType::f16, 1e-2, 4.5e-4, 2.3e-3});
  const std::string name = GENERATE("tiny", "tiny-bf16", "odd");
  const std::string folder = GENERATE(from_range(fixture_folders()));
  const Fixture fixture(folder, name);
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  if (kind != DeviceKind::cpu && !long_form() && folder != fixture_folders().front()) return;
  INFO(folder << "/" << name << " in " << name_of(row.dtype) << " on " << name_of(kind));
  const FirstBatch batch(fixture, kind, row.dtype);
  CHECK(worst_difference(batch.logits(), fixture.values("logits")) <= row.logits);
  CHECK(std::abs(batch.loss - fixture.json().at("loss").get<double>()) <= row.loss);
  check_gradients(fixture, batch, row.gradients);
}

TEST_CASE("greedy generation continues as the reference does, with and without a cache") {
  const ThreadCount one(1);
  const std::string name = GENERATE("tiny", "tiny-bf16", "tiny-prefixed", "odd");
  const bool use_cache = GENERATE(true, false);
  const std::string folder = GENERATE(from_range(fixture_folders()));
  const Fixture fixture(folder, name);
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  INFO(folder << "/" << name << ", cache " << use_cache << " on " << name_of(kind));
  const auto device = open_device(kind);
  const auto loaded =
      open_model(fixture.model(), device, DType::f32, ParameterSpace::Use::inference);
  const auto& greedy = fixture.json().at("greedy");
  const auto prompt = greedy.at("prompt").get<std::vector<std::int32_t>>();
  const auto expected = greedy.at("ids").get<std::vector<std::int32_t>>();
  const auto made = generate(*loaded.model, device, prompt,
                             {.max_tokens = static_cast<std::int64_t>(expected.size()),
                              .sampling = {.temperature = 0},
                              .use_cache = use_cache});
  CHECK(made == expected);
}

TEST_CASE("micro-batches add up to the gradient of the whole batch") {
  const ThreadCount one(1);
  const auto device = make_cpu_device();
  const DecoderConfig config = small_config();
  const auto tokens = random_ids(4 * 11, 64, 3);
  const auto targets = random_ids(4 * 11, 64, 4);
  const auto gradient_of = [&](std::size_t rows) {
    const auto made = random_model(config, device, DType::f64);
    const std::size_t count = rows * 11;
    const Shape shape{static_cast<std::int64_t>(rows), 11};
    for (std::size_t first = 0; first < tokens.size(); first += count) {
      const auto part = [&](const std::vector<std::int32_t>& ids) {
        return Tensor::from_tokens(device, shape, std::span(ids).subspan(first, count));
      };
      backward(made.model->loss(part(tokens), part(targets), {.scale = 1.0 / 44}).loss);
    }
    made.space->zero_unused_gradients();
    return flat_gradients(*made.space).to_host();
  };
  const Values whole = gradient_of(4);
  CHECK(relative_l2(gradient_of(2), whole) < 1e-13);
  CHECK(relative_l2(gradient_of(1), whole) < 1e-13);
}

TEST_CASE("the loss does not depend on how many tokens' logits exist at one time") {
  const ThreadCount one(1);
  const auto device = make_cpu_device();
  const auto tokens = Tensor::from_tokens(device, {2, 11}, random_ids(22, 64, 3));
  const auto targets = Tensor::from_tokens(device, {2, 11}, random_ids(22, 64, 4));
  const auto run = [&](std::int64_t chunk) {
    const auto made = random_model(small_config(), device, DType::f64);
    const auto loss = made.model->loss(tokens, targets, {.scale = 1.0 / 22, .chunk = chunk}).loss;
    backward(loss);
    made.space->zero_unused_gradients();
    Values all = flat_gradients(*made.space).to_host();
    all.push_back(loss.item());
    return all;
  };
  const Values whole = run(1024);
  for (const std::int64_t chunk : {1, 5, 22})
    CHECK(relative_l2(run(chunk), whole) < 1e-13);
}

TEST_CASE("a later token does not change the logits of an earlier one") {
  const ThreadCount one(1);
  const auto device = make_cpu_device();
  const auto made = random_model(small_config(), device, DType::f64);
  auto ids = random_ids(12, 64, 5);
  const auto logits = [&] {
    const NoGrad no_grad;
    return made.model->logits(made.model->hidden(Tensor::from_tokens(device, {1, 12}, ids)))
        .to_host();
  };
  const Values before = logits();
  ids[7] = (ids[7] + 1) % 64;
  const Values after = logits();
  // Equal to the bit before the change; different from there on.
  CHECK(std::equal(before.begin(), before.begin() + 7 * 64, after.begin()));
  for (std::ptrdiff_t row = 7; row < 12; ++row)
    CHECK_FALSE(std::equal(before.begin() + row * 64, before.begin() + (row + 1) * 64,
                           after.begin() + row * 64));
}

}  // namespace sluice::test::gpt2_fixture_test
