#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/autograd.h"
#include "models/decoder/generate.h"
#include "models/decoder/shard.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/training/tensor_ranks.h"

// A GPT-2 whose matrices several ranks divide computes what one process does.

namespace sluice::test::gpt2_tensor_parallel_test {
namespace {

TensorShare share_of(CommunicatorGroup& group, bool divides_tokens = false) {
  return {.rank = group.rank(),
          .size = group.size(),
          .group = &group,
          .divides_tokens = divides_tokens};
}

/// The combined results of all ranks in one forward and backward pass.
struct Found {
  Assembled gradients;
  Values logits;               ///< [rows, vocabulary]
  std::vector<Values> losses;  ///< of the tokens, by rank

  /// A rank's columns of the logits.
  void add_logits(const Decoder& model, const Values& mine) {
    const std::lock_guard lock(mutex_);
    const Shard::Range part = model.shard().vocabulary;
    const std::int64_t vocabulary = model.config().vocab_size, count = part.end - part.begin;
    const auto rows = static_cast<std::int64_t>(mine.size()) / count;
    logits.resize(static_cast<std::size_t>(rows * vocabulary));
    for (std::int64_t row = 0; row < rows; ++row)
      std::copy_n(mine.begin() + row * count, count,
                  logits.begin() + row * vocabulary + part.begin);
  }
  void add_losses(Values mine) {
    const std::lock_guard lock(mutex_);
    losses.push_back(std::move(mine));
  }

 private:
  std::mutex mutex_;
};

void run_rank(const TestModel& loaded, const Tensor& inputs, const Tensor& targets, Found& found) {
  const auto result = loaded.model->loss(
      inputs, targets, {.scale = 1.0 / static_cast<double>(inputs.size()), .chunk = 50});
  backward(result.loss);
  loaded.space->zero_unused_gradients();
  for (const auto& slot : loaded.space->slots())
    found.gradients.add(slot, slot.tensor->grad().to_host());
  found.add_losses(result.losses.to_host());
  const NoGrad no_grad;
  found.add_logits(*loaded.model, loaded.model->logits(loaded.model->hidden(inputs)).to_host());
}

double worst_difference(const Values& actual, const Values& expected) {
  REQUIRE(actual.size() == expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < actual.size(); ++i)
    if (const double off = std::abs(actual[i] - expected[i]); !(off <= worst)) worst = off;
  return worst;
}

}  // namespace

TEST_CASE("ranks that divide the matrices give the reference's logits, losses and gradients",
          "[tensor][threads]") {
  struct Row {
    const char* name;
    int ranks;
    bool divides_tokens;
  };
  const auto [name, ranks, divides_tokens] =
      GENERATE(Row{"tiny", 2, false}, Row{"tiny", 2, true}, Row{"odd", 2, false},
               Row{"odd", 2, true}, Row{"odd", 4, false}, Row{"odd", 5, false},
               Row{"qwen2", 2, false}, Row{"qwen2", 2, true});  // these share a head of k and v
  const std::string folder = GENERATE(from_range(fixture_folders()));
  if (name == std::string("qwen2") && folder != fixture_folders().front()) return;
  const Fixture fixture(folder, name);
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  if (kind != DeviceKind::cpu && !long_form() && folder != fixture_folders().front()) return;
  INFO(folder << "/" << name << ", " << ranks << " ranks on " << name_of(kind) << ", tokens "
              << divides_tokens);
  Found found;
  on_tensor_ranks(ranks, kind, [&](CommunicatorGroup& group, const DevicePtr& device) {
    const TestModel loaded =
        open_model(fixture.model(), device, DType::f32, ParameterSpace::Use::training,
                   share_of(group, divides_tokens));
    const Shape shape{fixture.hyper("batch"), fixture.hyper("seq")};
    run_rank(loaded, Tensor::from_tokens(device, shape, fixture.ids("input_ids")),
             Tensor::from_tokens(device, shape, fixture.ids("targets")), found);
  });
  CHECK(worst_difference(found.logits, fixture.values("logits")) <= 2e-5);
  const auto expected = fixture.json().at("loss_per_token").get<Values>();
  for (const Values& losses : found.losses) {
    CHECK(losses == found.losses.front());
    CHECK(worst_difference(losses, expected) <= 2e-5);
  }
  CHECK(found.gradients.differences().empty());
  const TestModel whole = open_model(fixture.model(), make_cpu_device());
  for (const auto& slot : whole.space->slots())
    for (const StoredSlice& slice : slot.stored()) {
      INFO(slice.name);
      const auto first = found.gradients.values().at(slot.name).begin() + slice.first;
      // A key's bias has a gradient that is a small difference of large numbers.
      const double bound = slice.name.ends_with("k_proj.bias") ? 3e-5 : 1e-5;
      CHECK(relative_l2(Values(first, first + element_count(slice.shape)),
                        fixture.values("grad." + slice.name)) <= bound);
    }
}

TEST_CASE("in double, ranks and one process agree to rounding, dropout included",
          "[tensor][threads]") {
  const DecoderConfig plain{
      .n_layer = 2, .n_head = 5, .n_embd = 20, .vocab_size = 37, .n_positions = 12};
  // 2 or 3 ranks share a head of k and v.
  DecoderConfig shared = config_of(Family::qwen3);
  shared.n_layer = 2;
  shared.n_head = 6;
  shared.n_kv_head = 2;
  shared.head_width = 12;
  shared.n_embd = 20;
  shared.n_inner = 24;
  shared.vocab_size = 37;
  shared.n_positions = 12;
  const auto [config, ranks] = GENERATE_COPY(table<DecoderConfig, int>(
      {{plain, 2}, {plain, 4}, {plain, 5}, {shared, 2}, {shared, 4}, {shared, 6}}));
  const bool divides_tokens = GENERATE(false, true);  // 24 of them: 5 ranks keep all
  const Recompute mode = GENERATE(Recompute::none, Recompute::gelu_ln, Recompute::block);
  const DropoutSource dropout{.seed = 7, .step = 3, .first_sample = 5, .probability = 0.2f};
  const auto tokens = random_ids(24, 37, 3), targets = random_ids(24, 37, 4);
  INFO(ranks << " ranks, recompute " << static_cast<int>(mode) << ", tokens " << divides_tokens);
  Found alone, found;
  const auto run = [&](const TensorShare& share, const DevicePtr& device, Found& into) {
    const TestModel made =
        random_model(config, device, DType::f64, 1, ParameterSpace::Use::training, share);
    made.model->set_recompute({mode, mode});
    const auto result = made.model->loss(Tensor::from_tokens(device, {2, 12}, tokens),
                                         Tensor::from_tokens(device, {2, 12}, targets),
                                         {.scale = 1.0 / 24, .chunk = 7}, dropout);
    backward(result.loss);
    made.space->zero_unused_gradients();
    for (const auto& slot : made.space->slots())
      into.gradients.add(slot, slot.tensor->grad().to_host());
    into.add_losses(result.losses.to_host());
  };
  run({}, make_cpu_device(), alone);
  on_tensor_ranks(ranks, DeviceKind::cpu, [&](CommunicatorGroup& group, const DevicePtr& device) {
    run(share_of(group, divides_tokens), device, found);
  });
  for (const Values& losses : found.losses)
    CHECK(worst_difference(losses, alone.losses.front()) <= 1e-13);
  CHECK(found.gradients.differences().empty());
  for (const auto& [parameter, gradient] : found.gradients.values()) {
    INFO(parameter);
    CHECK(relative_l2(gradient, alone.gradients.values().at(parameter)) <= 1e-12);
  }
}

TEST_CASE("greedy generation by several ranks continues as the reference does",
          "[tensor][threads]") {
  const std::string name = GENERATE("tiny", "odd", "qwen2");
  const std::string folder = GENERATE(from_range(fixture_folders()));
  if (name == "qwen2" && folder != fixture_folders().front()) return;
  const Fixture fixture(folder, name);
  const bool use_cache = GENERATE(true, false);
  const auto& greedy = fixture.json().at("greedy");
  const auto prompt = greedy.at("prompt").get<std::vector<std::int32_t>>();
  const auto expected = greedy.at("ids").get<std::vector<std::int32_t>>();
  const int ranks = name == "odd" ? 4 : 2;
  std::mutex mutex;
  int right = 0;
  on_tensor_ranks(ranks, DeviceKind::cpu, [&](CommunicatorGroup& group, const DevicePtr& device) {
    const auto loaded = open_model(fixture.model(), device, DType::f32,
                                   ParameterSpace::Use::inference, share_of(group));
    const auto made = generate(*loaded.model, device, prompt,
                               {.max_tokens = static_cast<std::int64_t>(expected.size()),
                                .sampling = {.temperature = 0},
                                .use_cache = use_cache});
    const std::lock_guard lock(mutex);
    right += made == expected ? 1 : 0;
  });
  CHECK(right == ranks);
}

TEST_CASE("a rank's part of a model: heads, width and vocabulary by hand", "[tensor]") {
  const DecoderConfig config{
      .n_layer = 1, .n_head = 5, .n_embd = 20, .vocab_size = 11, .n_positions = 4};
  const DecoderShard first(config, 0, 2), second(config, 1, 2);
  CHECK(first.heads == Shard::Range{0, 3});
  CHECK(second.heads == Shard::Range{3, 5});
  CHECK(second.width == Shard::Range{12, 20});
  CHECK(second.qkv == std::vector<Shard::Range>{{12, 20}, {32, 40}, {52, 60}});
  CHECK(first.inner == Shard::Range{0, 40});
  CHECK(second.vocabulary == Shard::Range{6, 11});
  CHECK(vocabulary_counts(config, 3) == std::vector<std::int64_t>{4, 4, 3});
  Decoder model(config, {.rank = 1, .size = 2});
  std::map<std::string, Shape> shapes;
  for (const Parameter& parameter : model.parameters())
    shapes[parameter.name] = parameter.shape;
  CHECK(shapes == std::map<std::string, Shape>{{"wte.weight", {5, 20}},
                                               {"wpe.weight", {4, 20}},
                                               {"h.0.attn.c_attn.weight", {20, 24}},
                                               {"h.0.attn.c_attn.bias", {24}},
                                               {"h.0.attn.c_proj.weight", {8, 20}},
                                               {"h.0.attn.c_proj.bias", {20}},
                                               {"h.0.mlp.c_fc.weight", {20, 40}},
                                               {"h.0.mlp.c_fc.bias", {40}},
                                               {"h.0.mlp.c_proj.weight", {40, 20}},
                                               {"h.0.mlp.c_proj.bias", {20}},
                                               {"h.0.ln_1.weight", {20}},
                                               {"h.0.ln_1.bias", {20}},
                                               {"h.0.ln_2.weight", {20}},
                                               {"h.0.ln_2.bias", {20}},
                                               {"ln_f.weight", {20}},
                                               {"ln_f.bias", {20}}});
}

TEST_CASE("ranks that share a head of k and v have parts of it, by hand", "[tensor]") {
  DecoderConfig config = config_of(Family::llama);
  config.n_head = 6;
  config.n_kv_head = 2;
  config.n_embd = 48;
  const auto shard = [&](int rank) { return DecoderShard(config, rank, 4); };
  using Ranges = std::vector<Shard::Range>;
  // Columns: 48 of q, 16 of k, 16 of v. Three query heads attend to each head of k and v.
  CHECK(shard(0).qkv == Ranges{{0, 16}, {48, 52}, {64, 68}});
  CHECK(shard(1).qkv == Ranges{{16, 24}, {52, 56}, {68, 72}});
  CHECK(shard(2).qkv == Ranges{{24, 40}, {56, 60}, {72, 76}});
  CHECK(shard(3).qkv == Ranges{{40, 48}, {60, 64}, {76, 80}});
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(shard(rank).sharers == 2);
    CHECK(shard(rank).key_value_heads == Shard::Range{rank / 2, rank / 2 + 1});
    CHECK(shard(rank).attention_heads().query == (rank % 2 == 0 ? 2 : 1));
  }
}

TEST_CASE("a model that does not divide is refused with the arithmetic", "[tensor][bad]") {
  const DecoderConfig config{
      .n_layer = 1, .n_head = 4, .n_embd = 16, .vocab_size = 11, .n_positions = 4};
  require_divisible(config, 4);
  CHECK(error_message([&] { require_divisible(config, 5); }) ==
        "--tp 5: the model has 4 heads, and each rank needs one at least; use --tp 1, 2, 4");
  CHECK(error_message([&] { require_divisible(config, 3); }) ==
        "--tp 3: the MLP is 64 wide, which does not divide: 21 * 3 = 63; use --tp 1, 2, 4");
  DecoderConfig shared = config;
  shared.n_head = 12;
  shared.n_kv_head = 2;
  shared.head_width = 10;
  for (const int ranks : {1, 2, 4})
    CHECK(division_fault(shared, ranks).empty());
  CHECK(division_fault(shared, 3) ==
        "2 heads of k and v 10 wide cannot be shared equally by 3 ranks; use --tp 1, 2, 4");
  CHECK(division_fault(shared, 6) ==
        "2 heads of k and v 10 wide cannot be shared equally by 6 ranks; use --tp 1, 2, 4");
  CHECK(division_fault(shared, 13) ==
        "the model has 12 heads, and each rank needs one at least; use --tp 1, 2, 4");
}

}  // namespace sluice::test::gpt2_tensor_parallel_test
