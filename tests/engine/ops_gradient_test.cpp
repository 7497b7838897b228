#include <cmath>
#include <set>

#include "engine/autograd.h"
#include "engine/ops/attention.h"
#include "engine/ops/dropout.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/embedding.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/linear/linear_cross_entropy.h"
#include "engine/ops/norm.h"
#include "models/mlp/mlp.h"
#include "optim/space/parameter_space.h"
#include "tests/engine/gradient_leaves.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/form.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::ops_gradient_test {
namespace {

TEST_CASE("gradcheck finds a wrong gradient", "[gradient]") {
  const auto cpu = device();
  // A ReLU whose kink lies inside the step has no derivative that central differences could meet.
  const Tensor at_kink = Tensor::from_host(cpu, {2}, DType::f64, Values{0.0, 1.0});
  const auto report = gradcheck([](const Leaves& in) { return relu(in[0]); }, {at_kink});
  CHECK_THAT(report, Contains("leaf 0 element 0"));
  CHECK_THAT(report, !Contains("element 1"));
  // A leaf that the output does not depend on gets no gradient at all.
  CHECK_THAT(gradcheck([](const Leaves& in) { return gelu(in[0]); },
                       {random_tensor(cpu, {3}, 1), random_tensor(cpu, {3}, 2)}),
             Contains("leaf 1 has no gradient"));
}

TEST_CASE("gradcheck perturbs a sample of a large leaf, both ends included", "[gradient]") {
  constexpr std::size_t size = 300, samples = 20;
  const Tensor zeros = Tensor::from_host(device(), {size}, DType::f64, Values(size, 0.0));
  std::set<std::size_t> perturbed;
  const auto watched = [&](const Leaves& in) {
    const Values values = in[0].to_host();
    for (std::size_t i = 0; i < size; ++i)
      if (values[i] != 0) perturbed.insert(i);
    return gelu(in[0]);
  };
  CHECK(gradcheck(watched, {zeros}, {.samples = samples}) == "");
  CHECK(perturbed.size() == samples);
  CHECK(perturbed.contains(0));
  CHECK(perturbed.contains(size - 1));
}

Shape stored(std::int64_t in, std::int64_t out, WeightLayout layout) {
  return layout == WeightLayout::in_out ? Shape{in, out} : Shape{out, in};
}

TEST_CASE("linear has the gradient of its formula", "[gradient]") {
  const auto cpu = device();
  const struct {
    Shape x;
    std::int64_t out;
  } cases[] = {{{1, 1}, 1}, {{3, 5, 7}, 11}, {{2, 33, 65}, 37}, {{70, 3}, 130}};
  for (const WeightLayout layout : {WeightLayout::in_out, WeightLayout::out_in}) {
    const auto with_bias = [=](const Leaves& in) {
      return linear(in[0], in[1], in[2], {.layout = layout});
    };
    const auto without_bias = [=](const Leaves& in) {
      return linear(in[0], in[1], {}, {.layout = layout});
    };
    for (const auto& [x, out] : cases) {
      CAPTURE(to_string(x), out, layout == WeightLayout::in_out);
      const Leaves leaves{random_tensor(cpu, x, 1),
                          random_tensor(cpu, stored(x.back(), out, layout), 2),
                          random_tensor(cpu, {out}, 3)};
      CHECK(gradcheck(with_bias, leaves) == "");
      CHECK(gradcheck(without_bias, {leaves[0], leaves[1]}) == "");
    }
  }
}

TEST_CASE("a weight gives the same results in either layout", "[gradient]") {
  const auto cpu = device();
  const std::int64_t in = 5, out = 3;
  const Tensor x = random_tensor(cpu, {4, in}, 1), weight = random_tensor(cpu, {in, out}, 2);
  const Values values = weight.to_host();
  Values transposed(values.size());
  for (std::size_t i = 0; i < in; ++i)
    for (std::size_t j = 0; j < out; ++j)
      transposed[j * in + i] = values[i * out + j];
  const Tensor turned = Tensor::from_host(cpu, {out, in}, DType::f64, transposed);
  const Values expected = linear(x, weight).to_host();
  CHECK(relative_l2(linear(x, turned, {}, {.layout = WeightLayout::out_in}).to_host(), expected) <
        1e-15);
  CHECK(relative_l2(logits_of(x, turned).to_host(), expected) < 1e-15);
}

TEST_CASE("gelu, relu and dropout have the gradients of their formulas", "[gradient]") {
  const auto cpu = device();
  CHECK(gradcheck([](const Leaves& in) { return gelu(in[0]); },
                  {random_tensor(cpu, {5, 37}, 1, 5)}) == "");
  Values away = random_values(5 * 37, 2);
  for (auto& value : away)
    value += value < 0 ? -0.01 : 0.01;
  CHECK(gradcheck([](const Leaves& in) { return relu(in[0]); },
                  {Tensor::from_host(cpu, {5, 37}, DType::f64, away)}) == "");
  const DropoutMask mask{.key = 99, .probability = 0.3f, .first_sample = 5};
  CHECK(gradcheck([&](const Leaves& in) { return dropout(in[0], mask); },
                  {random_tensor(cpu, {4, 3, 13}, 3)}) == "");
}

TEST_CASE("add gives both inputs the gradient of their sum", "[gradient]") {
  const auto cpu = device();
  const Leaves leaves{random_tensor(cpu, {3, 5, 7}, 1), random_tensor(cpu, {3, 5, 7}, 2)};
  CHECK(gradcheck([](const Leaves& in) { return add(in[0], in[1]); }, leaves) == "");
  // The same tensor twice.
  CHECK(gradcheck([](const Leaves& in) { return add(in[0], in[0]); }, {leaves[0]}) == "");
  // Both receive the same tensor, and one of them adds to it.
  CHECK(gradcheck(
            [](const Leaves& in) {
              const Tensor sum = add(in[0], in[1]);
              return add(add(gelu(in[0]), sum), in[0]);
            },
            leaves) == "");
}

TEST_CASE("attention has the gradient of its formula", "[gradient]") {
  const auto cpu = device();
  for (const std::int64_t head_width : {1, 5, 16, 64}) {
    for (const std::int64_t length : {1, 7, 64, 65, 130}) {
      for (const std::int64_t batch : {1, 2}) {
        for (const float probability : {0.0f, 0.25f}) {
          const int heads = head_width == 64 ? 1 : 3;
          CAPTURE(head_width, length, batch, probability);
          const DropoutMask mask{.key = 7, .probability = probability, .first_sample = 3};
          const GradcheckOptions options{.samples = length > 60 ? 24u : 60u};
          CHECK(gradcheck(
                    [&](const Leaves& in) {
                      return attention(in[0], {.heads = heads, .mask = mask});
                    },
                    {random_tensor(cpu, {batch, length, 3 * heads * head_width}, 1, 1.5)},
                    options) == "");
        }
      }
    }
  }
}

TEST_CASE("attention with shared heads and rotary positions has the gradient of its formula",
          "[gradient]") {
  const auto cpu = device();
  for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved})
    for (const int shared : {1, 2, 6})
      for (const std::int64_t length : {1, 7, 66}) {
        RotaryAngles angles{.width = 4, .pairs = pairs};
        angles.turns = {0x28BE60DB9391054A, 0x068DB8BAC710CB29};
        AttentionOptions options{.heads = {6, shared}, .rotary = &angles};
        if (shared == 2 && length > 1) options.documents = {{0, 2, length - 1, length}};
        CAPTURE(shared, length, pairs == RotaryPairs::halves);
        const Tensor none = Tensor::zeros(cpu, {2, length, (6 + 2 * shared) * 5}, DType::f64);
        // The sum is a tensor of its own: rotary positions are applied in place.
        CHECK(gradcheck([&](const Leaves& in) { return attention(add(in[0], none), options); },
                        {random_tensor(cpu, none.shape(), 1, 1.5)}, {.samples = 60}) == "");
      }
  const auto refusal = [&](const Shape& shape, const AttentionOptions& options) {
    return error_message([&] { attention(random_tensor(cpu, shape, 1), options); });
  };
  CHECK_THAT(refusal({1, 2, 20}, {.heads = {6, 4}}),
             Contains("6 query heads do not divide into groups for 4 key/value heads"));
  CHECK_THAT(refusal({1, 2, 21}, {.heads = {6, 2}}),
             Contains("shape [1, 2, 21] does not divide into q of 6 heads, and k and v of 2"));
  const RotaryAngles wide{.width = 4};
  CHECK_THAT(refusal({1, 2, 9}, {.heads = 1, .rotary = &wide}),
             Contains("rotary positions of 4 columns do not fit heads 3 wide"));
  Tensor leaf = random_tensor(cpu, {1, 2, 12}, 1);
  leaf.set_requires_grad(true);
  CHECK_THAT(error_message([&] { attention(leaf, {.heads = 1, .rotary = &wide}); }),
             Contains("rotary positions would change a leaf"));
}

TEST_CASE("embedding has the gradient of its formula", "[gradient]") {
  const auto cpu = device();
  const Tensor tokens =
      Tensor::from_tokens(cpu, {2, 5}, std::vector<std::int32_t>{3, 3, 0, 6, 3, 6, 1, 0, 3, 3});
  for (const auto& some : {Documents(), Documents{{0, 2, 5, 9}}, Documents{{0, 5}, {4, 1}}}) {
    CHECK(
        gradcheck(
            [&](const Leaves& in) { return embedding(tokens, in[0], in[1], {.documents = some}); },
            {random_tensor(cpu, {7, 13}, 1), random_tensor(cpu, {9, 13}, 2)}) == "");
  }
}

TEST_CASE("the row of a padding token gets no gradient, as PyTorch's padding_idx") {
  const auto cpu = device();
  const Tensor tokens =
      Tensor::from_tokens(cpu, {2, 3}, std::vector<std::int32_t>{3, 3, 0, 6, 3, 1});
  const auto gradients = [&](std::int64_t padding) {
    Tensor words = random_tensor(cpu, {7, 5}, 1), places = random_tensor(cpu, {3, 5}, 2);
    words.set_requires_grad(true);
    places.set_requires_grad(true);
    const Tensor out = embedding(tokens, words, places, {.padding = padding});
    backward(out, random_tensor(cpu, {2, 3, 5}, 3));
    return std::pair(words.grad().to_host(), places.grad().to_host());
  };
  const auto [all, all_places] = gradients(-1);
  const auto [some, some_places] = gradients(3);
  CHECK(all_places == some_places);
  for (std::size_t i = 0; i < all.size(); ++i) {
    INFO("row " << i / 5);
    CHECK(some[i] == (i / 5 == 3 ? 0 : all[i]));
    if (i / 5 == 3) CHECK(all[i] != 0);
  }
}

TEST_CASE("a sequence may end with the last position of the table and not after it") {
  const auto cpu = device();
  const Tensor words = random_tensor(cpu, {7, 3}, 1), positions = random_tensor(cpu, {9, 3}, 2);
  const Tensor tokens = Tensor::from_tokens(cpu, {1, 5}, std::vector<std::int32_t>(5, 2));
  const auto from = [&](std::int64_t first) {
    return error_message([&] {
      embedding(tokens, words, positions, {.documents = {{0}, {first}}});
    });
  };
  CHECK(from(0) == "(no error)");
  CHECK(from(4) == "(no error)");
  for (const std::int64_t first : {5, 9})
    CHECK_THAT(from(first), Contains("longer than the model's context of 9"));
}

TEST_CASE("linear_cross_entropy has the gradient of its formula", "[gradient]") {
  const auto cpu = device();
  const Tensor targets =
      Tensor::from_tokens(cpu, {2, 5}, std::vector<std::int32_t>{3, 10, 0, 6, 3, 6, 1, 0, 10, 3});
  // Chunks smaller than the rows, dividing and not dividing them, equal to and above them.
  for (const std::int64_t chunk : {1, 3, 5, 10, 64}) {
    for (const double scale : {1.0, 0.1}) {
      CAPTURE(chunk, scale);
      const auto loss = [&](const Leaves& in) {
        return linear_cross_entropy(in[0], in[1], targets, {.scale = scale, .chunk = chunk}).loss;
      };
      CHECK(gradcheck(loss, {random_tensor(cpu, {2, 5, 13}, 1), random_tensor(cpu, {11, 13}, 2)},
                      {.unit_upstream = true}) == "");
      // The hidden rows are produced by an op, so that the gradient has to propagate further.
      CHECK(gradcheck(
                [&](const Leaves& in) {
                  return loss({gelu(in[0]), in[1]});
                },
                {random_tensor(cpu, {2, 5, 13}, 3), random_tensor(cpu, {11, 13}, 4)},
                {.unit_upstream = true}) == "");
      CHECK(gradcheck(
                [&](const Leaves& in) {
                  return linear_cross_entropy(in[0], in[1], targets,
                                              {.scale = scale, .chunk = chunk, .bias = in[2]})
                      .loss;
                },
                {random_tensor(cpu, {2, 5, 13}, 5), random_tensor(cpu, {11, 13}, 6),
                 random_tensor(cpu, {11}, 7)},
                {.unit_upstream = true}) == "");
    }
  }
}

TEST_CASE("a recorded and an unrecorded loss are the same number", "[gradient]") {
  const auto cpu = device();
  const Tensor targets = Tensor::from_tokens(cpu, {3}, std::vector<std::int32_t>{0, 4, 2});
  Tensor hidden = random_tensor(cpu, {3, 9}, 1), table = random_tensor(cpu, {5, 9}, 2);
  const Values x = hidden.to_host(), w = table.to_host();
  const auto run = [&] {
    return linear_cross_entropy(hidden, table, targets, {.scale = 0.5, .chunk = 2});
  };
  const auto plain = run();
  hidden.set_requires_grad(true);
  table.set_requires_grad(true);
  const auto recorded = run();
  backward(recorded.loss);
  CHECK(plain.losses.to_host() == recorded.losses.to_host());
  CHECK(plain.loss.item() == recorded.loss.item());
  double sum = 0;
  const std::size_t ids[] = {0, 4, 2};
  for (std::size_t i = 0; i < 3; ++i) {
    double exponentials = 0, target = 0;
    for (std::size_t j = 0; j < 5; ++j) {
      double logit = 0;
      for (std::size_t k = 0; k < 9; ++k)
        logit += x[i * 9 + k] * w[j * 9 + k];
      exponentials += std::exp(logit);
      if (j == ids[i]) target = logit;
    }
    CHECK(plain.losses.item(static_cast<std::int64_t>(i)) ==
          Approx(std::log(exponentials) - target).epsilon(1e-12));
    sum += std::log(exponentials) - target;
  }
  CHECK(plain.loss.item() == Approx(0.5 * sum).epsilon(1e-12));
}

TEST_CASE("every parameter of the MLP has the right gradient", "[gradient]") {
  const auto cpu = device();
  Mlp model({.in = 7, .width = 19, .layers = 3, .classes = 5});
  const auto parameters = model.parameters();
  ParameterSpace space(parameters, cpu, DType::f64, ParameterSpace::Use::training);
  space.initialize(3);
  Leaves leaves;
  for (const auto& parameter : parameters) {
    // The declared start (0.02, ones, zeros) would leave some gradients too small to tell.
    const Tensor start = random_tensor(cpu, parameter.shape, 10 + leaves.size(), 1);
    std::vector<std::byte> bytes(start.bytes());
    start.copy_bytes_to(bytes);
    parameter.tensor->copy_bytes_from(bytes);
    leaves.push_back(*parameter.tensor);
  }
  const Tensor x = random_tensor(cpu, {6, 7}, 5);
  const Tensor targets = Tensor::from_tokens(cpu, {6}, std::vector<std::int32_t>{0, 4, 2, 2, 1, 3});
  CHECK(gradcheck([&](const Leaves&) { return model.loss(x, targets, {.scale = 1.0 / 6}).loss; },
                  leaves, {.unit_upstream = true}) == "");
}

TEST_CASE("a table tied between embedding and head collects both gradients", "[gradient]") {
  const auto cpu = device();
  const std::vector<std::int32_t> ids{3, 3, 0, 6, 3, 6, 1, 0, 3, 3};
  const Tensor tokens = Tensor::from_tokens(cpu, {2, 5}, ids);
  const auto loss = [&](const Leaves& in) {
    const Tensor x = embedding(tokens, in[0], in[1]);
    const Tensor hidden =
        residual_norm(x, attention(linear(x, in[2]), {.heads = 2}), {in[3], in[4]}, 1e-5)
            .normalized;
    return linear_cross_entropy(hidden, in[0], tokens, {.scale = 0.1, .chunk = 4}).loss;
  };
  CHECK(gradcheck(loss,
                  {random_tensor(cpu, {7, 6}, 1), random_tensor(cpu, {5, 6}, 2),
                   random_tensor(cpu, {6, 18}, 3), random_tensor(cpu, {6}, 4),
                   random_tensor(cpu, {6}, 5)},
                  {.unit_upstream = true}) == "");
}

TEST_CASE("hooks of unreached leaves stay silent, that of a tied table fires once", "[gradient]") {
  const auto cpu = device();
  int table_fired = 0, other_fired = 0;
  Tensor table = random_tensor(cpu, {3, 3}, 1);
  Tensor other = random_tensor(cpu, {1}, 2);
  table.set_requires_grad(true);
  other.set_requires_grad(true);
  set_gradient_ready_hook(table, [&] { ++table_fired; });
  set_gradient_ready_hook(other, [&] { ++other_fired; });
  const Tensor targets = Tensor::from_tokens(cpu, {3}, std::vector<std::int32_t>{0, 1, 2});
  // The table is a matrix on the way and the head at the end.
  const auto loss = linear_cross_entropy(linear(table, table), table, targets, {.chunk = 2});
  CHECK(table_fired == 0);
  backward(loss.loss);
  CHECK(table_fired == 1);
  // A frozen trunk: only the head contributes, and still its hook has to fire.
  backward(linear_cross_entropy(table.detach(), table, targets, {}).loss);
  CHECK(table_fired == 2);
  CHECK(other_fired == 0);
}

}  // namespace
}  // namespace sluice::test::ops_gradient_test
