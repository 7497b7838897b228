#include <cmath>
#include <set>

#include "engine/autograd.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/gradcheck.h"

// Every kind of parameter of a GPT-2 in double against central differences of the loss.

namespace sluice::test::gpt2_gradient_test {
namespace {

struct Case {
  const char* what;
  DecoderConfig config;
  std::int64_t batch, seq_len, chunk;
  float dropout;
};

// Sizes that are no multiples of a tile, a sequence shorter than the context, a head of one and an
// MLP of an unusual width.
const Case cases[] = {
    {"no dropout",
     {.n_layer = 2, .n_head = 3, .n_embd = 15, .vocab_size = 37, .n_positions = 11},
     2,
     9,
     1024,
     0},
    {"dropout",
     {.n_layer = 2, .n_head = 3, .n_embd = 15, .vocab_size = 37, .n_positions = 11},
     2,
     9,
     1024,
     0.3F},
    {"chunks, n_inner",
     {.n_layer = 2, .n_head = 2, .n_embd = 14, .n_inner = 23, .vocab_size = 29, .n_positions = 7},
     3,
     7,
     5,
     0.1F},
    {"heads of width one",
     {.n_layer = 1, .n_head = 5, .n_embd = 5, .vocab_size = 11, .n_positions = 6},
     1,
     6,
     1024,
     0},
};

}  // namespace

TEST_CASE("every parameter's gradient is the slope of the loss") {
  const ThreadCount one(1);
  const auto device = make_cpu_device();
  for (const Case& c : cases) {
    INFO(c.what);
    const auto made = random_model(c.config, device, DType::f64, 7);
    const auto count = static_cast<std::size_t>(c.batch * c.seq_len);
    const auto vocab = static_cast<std::int32_t>(c.config.vocab_size);
    const Shape shape{c.batch, c.seq_len};
    const auto tokens = Tensor::from_tokens(device, shape, random_ids(count, vocab, 1));
    const auto targets = Tensor::from_tokens(device, shape, random_ids(count, vocab, 2));
    // The mask is a function of these numbers: every evaluation drops the same elements.
    const DropoutSource dropout{.seed = 5, .step = 2, .first_sample = 3, .probability = c.dropout};
    std::vector<Tensor> leaves;
    for (const auto& slot : made.space->slots())
      leaves.push_back(*slot.tensor);
    // The sum over tokens, not the mean: the slopes are then of order one, and an absolute bound
    // says something about every parameter.
    const auto loss = [&](const std::vector<Tensor>&) {
      return made.model->loss(tokens, targets, {.scale = 1, .chunk = c.chunk}, dropout).loss;
    };
    CHECK(gradcheck(loss, leaves,
                    {.tolerance = 1e-7, .step = 1e-5, .samples = 24, .unit_upstream = true}) == "");
    for (const auto& slot : made.space->slots()) {
      INFO(slot.name);
      const auto gradient = slot.tensor->grad().to_host();
      CHECK(std::any_of(gradient.begin(), gradient.end(),
                        [](double value) { return std::abs(value) > 1e-2; }));
    }
  }
}

TEST_CASE("the checked parameters are all that a GPT-2 has") {
  Decoder model(small_config());
  std::set<std::string> kinds;
  std::int64_t count = 0;
  for (const auto& parameter : model.parameters()) {
    CHECK(kinds.insert(parameter.name).second);
    count += element_count(parameter.shape);
  }
  CHECK(kinds.size() == 2 + 2 * 12 + 2);
  CHECK(count == small_config().parameter_count());
  for (const char* name :
       {"wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias", "h.0.attn.c_attn.weight",
        "h.0.attn.c_attn.bias", "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias", "h.1.ln_2.weight",
        "h.1.ln_2.bias", "h.1.mlp.c_fc.weight", "h.1.mlp.c_fc.bias", "h.1.mlp.c_proj.weight",
        "h.1.mlp.c_proj.bias", "ln_f.weight", "ln_f.bias"})
    CHECK(kinds.count(name) == 1);
}

TEST_CASE("the gradient of the keys' bias is zero: a shift of all scores changes nothing") {
  const ThreadCount one(1);
  const auto device = make_cpu_device();
  const auto made = random_model(small_config(), device, DType::f64);
  const auto ids = Tensor::from_tokens(device, {2, 16}, random_ids(32, 64, 1));
  backward(made.model->loss(ids, ids, {.scale = 1}).loss);
  const auto gradient = made.space->find("h.0.attn.c_attn.bias")->tensor->grad().to_host();
  for (std::size_t i = 16; i < 32; ++i)
    CHECK(std::abs(gradient[i]) < 1e-13);
}

TEST_CASE("dropout is a function of seed, step and sample, and is off in evaluation") {
  const ThreadCount one(1);
  const auto device = make_cpu_device();
  const auto made = random_model(small_config(), device, DType::f64);
  const auto ids = Tensor::from_tokens(device, {1, 16}, random_ids(16, 64, 1));
  const auto loss = [&](const DropoutSource& source) {
    const NoGrad no_grad;
    return made.model->loss(ids, ids, {}, source).loss.item();
  };
  const DropoutSource source{.seed = 1, .step = 1, .first_sample = 1, .probability = 0.2F};
  const double reference = loss(source);
  CHECK(loss(source) == reference);
  const auto changed = [&](auto&& change) {
    DropoutSource other = source;
    change(other);
    return loss(other) != reference;
  };
  CHECK(changed([](auto& s) { s.seed = 2; }));
  CHECK(changed([](auto& s) { s.step = 2; }));
  CHECK(changed([](auto& s) { s.first_sample = 2; }));
  CHECK(changed([](auto& s) { s.probability = 0; }));
  // Probabilities of their own act where they say.
  CHECK_FALSE(changed([](auto& s) { s.attention = s.embedding = s.probability; }));
  CHECK(changed([](auto& s) { s.attention = 0; }));
  CHECK(changed([](auto& s) { s.embedding = 0; }));
  CHECK(loss({.seed = 1, .step = 1, .first_sample = 1, .attention = 0.2F}) != loss({}));
  CHECK(loss({.seed = 1, .step = 1, .first_sample = 1, .embedding = 0.2F}) != loss({}));
}

TEST_CASE("dropout falls on each sequence by its global index, however the batch is cut") {
  const ThreadCount one(1);
  const auto device = make_cpu_device();
  const auto made = random_model(small_config(), device, DType::f64);
  const auto ids = random_ids(64, 64, 1);
  const auto losses = [&](std::int64_t first, std::int64_t rows) {
    const NoGrad no_grad;
    const auto part =
        Tensor::from_tokens(device, {rows, 16},
                            std::span(ids).subspan(static_cast<std::size_t>(first * 16),
                                                   static_cast<std::size_t>(rows * 16)));
    return made.model
        ->loss(part, part, {}, {.seed = 3, .step = 4, .first_sample = first, .probability = 0.2F})
        .losses.to_host();
  };
  const Values whole = losses(0, 4);
  for (std::int64_t row = 0; row < 4; ++row) {
    const Values single = losses(row, 1);
    const Values expected(whole.begin() + row * 16, whole.begin() + row * 16 + 16);
    CHECK(relative_l2(single, expected) < 1e-13);
  }
}

}  // namespace sluice::test::gpt2_gradient_test
