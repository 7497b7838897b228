#include <algorithm>
#include <cmath>
#include <set>

#include "engine/autograd.h"
#include "engine/host_memory.h"
#include "models/decoder/generate.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/fixture.h"
#include "tests/support/form.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"

// Recomputing what a layer does not keep changes no bit of a loss or gradient, only memory.

namespace sluice::test::gpt2_recompute_test {
namespace {

using Modes = std::vector<Recompute>;

std::string text_of(const Modes& modes) {
  std::string text;
  for (const Recompute mode : modes)
    text += std::string(name_of(mode)) + " ";
  return text;
}

constexpr auto none = Recompute::none, gelu = Recompute::gelu, gelu_ln = Recompute::gelu_ln,
               block = Recompute::block, on_host = Recompute::block_on_host;

/// Sizes that fit wide kernels, and odd ones that no kernel likes.
const DecoderConfig configs[] = {
    {.n_layer = 4, .n_head = 2, .n_embd = 16, .vocab_size = 64, .n_positions = 16},
    {.n_layer = 4, .n_head = 3, .n_embd = 15, .n_inner = 23, .vocab_size = 37, .n_positions = 11}};

std::vector<DType> dtypes_of(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return {DType::f32, DType::bf16, DType::f16};
  return {DType::f32, DType::bf16, DType::f64};
}

/// Calls `action(kind, dtype, config, dropout)` for everything that this build can run, in the
/// short form on the emulated GPU for every type with one of the sizes, with or without dropout.
template <class Action>
void for_all(Action&& action) {
  for (const DeviceKind kind : device_kinds())
    for (const DType dtype : dtypes_of(kind))
      for (const DecoderConfig& config : configs)
        for (const float dropout : {0.0F, 0.3F}) {
          CAPTURE(static_cast<int>(kind), name_of(dtype), config.n_embd, dropout);
          const bool odd = config.n_embd % 2 != 0;
          if (kind == DeviceKind::cuda && !long_form() &&
              (odd != (dtype == DType::bf16) || (dropout > 0) != (dtype != DType::f16)))
            continue;
          action(kind, dtype, config, dropout);
        }
}

/// A model and what it is trained on.
struct Setup {
  Setup(DeviceKind kind, DType dtype, const DecoderConfig& config, float dropout,
        const Modes& modes)
      : device(open_device(kind)),
        host(device, make_host_memory(device, std::size_t{1} << 20).pinned),
        made(random_model(config, device, dtype, 7)),
        probability(dropout) {
    made.model->set_recompute(modes, &host);
    const auto count = static_cast<std::size_t>(batch * config.n_positions);
    const auto vocab = static_cast<std::int32_t>(config.vocab_size);
    for (std::uint64_t seed = 1; seed <= 2; ++seed)
      ids.push_back(
          Tensor::from_tokens(device, {batch, config.n_positions}, random_ids(count, vocab, seed)));
  }

  LinearCrossEntropy loss(std::int64_t micro_batch = 0) const {
    return made.model->loss(
        ids.at(micro_batch == 0 ? 0 : 1), ids.at(micro_batch == 0 ? 1 : 0),
        {.scale = 1.0 / static_cast<double>(2 * ids[0].size()), .loss_scale = 64, .chunk = 8},
        {.seed = 5, .step = 2, .first_sample = micro_batch * batch, .probability = probability});
  }

  static constexpr std::int64_t batch = 3;
  DevicePtr device;
  mutable HostStack host;
  TestModel made;
  float probability;
  std::vector<Tensor> ids;
};

struct Results {
  Values losses, gradients;
};

/// Two micro-batches, whose gradients add up.
Results train(const Setup& setup) {
  Results results;
  for (const std::int64_t micro_batch : {0, 1}) {
    const auto [loss, losses] = setup.loss(micro_batch);
    backward(loss);
    for (const Tensor& part : {loss, losses})
      std::ranges::copy(part.to_host(), std::back_inserter(results.losses));
  }
  results.gradients = flat_gradients(*setup.made.space).to_host();
  return results;
}

/// Bytes of the distinct tensors that a graph keeps beside parameters and token ids; `round` to the
/// arena's blocks.
std::size_t kept_bytes(const Setup& setup, const Tensor& loss, bool round) {
  std::set<const std::byte*> seen;
  for (const auto& slot : setup.made.space->slots())
    seen.insert(slot.tensor->view().address);
  for (const Tensor& ids : setup.ids)
    seen.insert(ids.view().address);
  const std::size_t unit = round ? Arena::alignment : 1;
  std::size_t bytes = 0;
  for (const auto& [node, saved] : kept_tensors(loss))
    if (seen.insert(saved.tensor.view().address).second)
      bytes += (saved.tensor.bytes() + unit - 1) / unit * unit;
  return bytes;
}

/// Returns the bytes that a GPT-2 keeps, computed from its shapes.
std::size_t expected_bytes(const DecoderConfig& config, DType dtype, const Modes& modes) {
  const auto rows = static_cast<std::size_t>(Setup::batch * config.n_positions);
  const std::size_t row = rows * static_cast<std::size_t>(config.n_embd) * size_of(dtype);
  const std::size_t inner = rows * static_cast<std::size_t>(config.inner()) * size_of(dtype);
  const std::size_t sums = rows * size_of(accumulator_of(dtype));
  const auto heads = static_cast<std::size_t>(config.n_head);
  std::size_t bytes = row + 2 * sums + row;  // the last LayerNorm's, the gradient of its output
  // The last two of the inputs offloaded to host memory are on the device.
  const auto resting = static_cast<std::size_t>(std::ranges::count(modes, on_host));
  bytes += std::min<std::size_t>(2, resting) * row;
  for (const Recompute mode : modes) {
    if (mode == on_host) continue;
    if (mode == block) {
      bytes += row;  // its input
    } else {
      bytes += row + 2 * sums;                // LayerNorm: the sum
      bytes += 4 * row + heads * sums;        // attention: q, k, v, its output
      bytes += row + 2 * sums;                // LayerNorm
      bytes += inner;                         // what the GELU is taken of
      if (mode != gelu_ln) bytes += 2 * row;  // the LayerNorms' outputs
      if (mode == none) bytes += inner;
    }
  }
  return bytes;
}

const Modes uniform[] = {Modes(4, none), Modes(4, gelu), Modes(4, gelu_ln), Modes(4, block),
                         Modes(4, on_host)};
const Modes mixed[] = {{gelu_ln, block, none, gelu}, {on_host, none, on_host, on_host}};

}  // namespace

TEST_CASE("recompute changes no bit of losses and gradients") {
  for_all([](DeviceKind kind, DType dtype, const DecoderConfig& config, float dropout) {
    const Results expected = train({kind, dtype, config, dropout, uniform[0]});
    REQUIRE(std::ranges::all_of(expected.gradients, [](double g) { return std::isfinite(g); }));
    for (const Modes& modes :
         {uniform[1], uniform[2], uniform[3], uniform[4], mixed[0], mixed[1]}) {
      // The mixtures have all of them.
      const bool mixture = modes == mixed[0] || modes == mixed[1];
      if (kind == DeviceKind::cuda && !long_form() && !mixture) continue;
      CAPTURE(text_of(modes));
      const Results actual = train({kind, dtype, config, dropout, modes});
      CHECK(actual.losses == expected.losses);
      CHECK(actual.gradients == expected.gradients);
    }
  });
}

TEST_CASE("recompute keeps what its modes say and no more") {
  for_all([](DeviceKind kind, DType dtype, const DecoderConfig& config, float dropout) {
    std::size_t previous_peak = SIZE_MAX;
    for (const Modes& modes :
         {uniform[0], uniform[1], uniform[2], uniform[3], uniform[4], mixed[0], mixed[1]}) {
      CAPTURE(text_of(modes));
      const Setup setup(kind, dtype, config, dropout, modes);
      const auto& arena = setup.device->arena();
      const std::size_t before = arena.in_use();
      {
        const auto [loss, losses] = setup.loss();
        CHECK(kept_bytes(setup, loss, false) == expected_bytes(config, dtype, modes));
        // The list is the truth: nothing else is in memory but the two results.
        const std::size_t results =
            (losses.bytes() + Arena::alignment - 1) / Arena::alignment * Arena::alignment +
            Arena::alignment;
        CHECK(arena.in_use() - before == kept_bytes(setup, loss, true) + results);
        backward(loss);
        CHECK(arena.in_use() - before == results);
      }
      if (modes == mixed[0] || modes == mixed[1]) continue;
      CHECK(arena.peak() < previous_peak);
      previous_peak = arena.peak();
    }
  });
}

TEST_CASE("with recompute, a step's peak shrinks by what each layer does not keep") {
  // Wide enough that activations outweigh the head's buffers.
  const DecoderConfig config{
      .n_layer = 4, .n_head = 2, .n_embd = 64, .vocab_size = 64, .n_positions = 32};
  const auto peak = [&](const Modes& modes) {
    const Setup setup(DeviceKind::cpu, DType::f32, config, 0.1F, modes);
    const std::size_t before = setup.device->arena().in_use();
    train(setup);
    return setup.device->arena().peak() - before;
  };
  const auto tokens = static_cast<std::size_t>(Setup::batch * config.n_positions);
  const std::size_t row = tokens * static_cast<std::size_t>(config.n_embd) * 4;
  const std::size_t statistics = 4 * 512 + tokens * 2 * 4;  // of two LayerNorms, of two heads
  // All peaks are at the end of the top layer's MLP, whose output of the GELU and whose input are
  // free by then if they were computed again.
  const std::size_t all = peak(uniform[0]);
  CHECK(all - peak(uniform[1]) == 4 * 4 * row);
  CHECK(all - peak(uniform[2]) == 4 * (4 + 2) * row);
  // The lower layers keep their input alone.
  CHECK(all - peak(uniform[3]) == 3 * (16 * row + statistics) - 3 * row);
}

TEST_CASE("with recompute, ready hooks fire once and in the same order, on complete gradients") {
  std::vector<std::string> expected;
  for (const Modes& modes :
       {uniform[0], uniform[1], uniform[2], uniform[3], uniform[4], mixed[0], mixed[1]}) {
    CAPTURE(text_of(modes));
    const Setup setup(DeviceKind::cpu, DType::f32, configs[1], 0.3F, modes);
    std::vector<std::string> order;
    std::vector<Values> at_hook;
    for (const auto& slot : setup.made.space->slots())
      set_gradient_ready_hook(*slot.tensor, [&, tensor = slot.tensor, name = slot.name] {
        order.push_back(name);
        at_hook.push_back(tensor->grad().to_host());
      });
    for (const std::int64_t micro_batch : {0, 1}) {
      order.clear();
      at_hook.clear();
      backward(setup.loss(micro_batch).loss);
      REQUIRE(order.size() == setup.made.space->slots().size());
      for (std::size_t i = 0; i < order.size(); ++i)
        CHECK(at_hook[i] == setup.made.space->find(order[i])->tensor->grad().to_host());
      if (expected.empty()) expected = order;
      CHECK(order == expected);
    }
  }
}

TEST_CASE("recompute leaves evaluation and generation as they are") {
  for (const DeviceKind kind : device_kinds()) {
    const auto results = [&](const Modes& modes) {
      const Setup setup(kind, DType::f32, configs[0], 0, modes);
      const auto prompt = random_ids(5, 64, 3);
      const auto made = generate(*setup.made.model, setup.device, prompt, {.max_tokens = 20});
      Values values(made.begin(), made.end());
      const NoGrad no_grad;
      const auto [loss, losses] = setup.loss();
      CHECK(kept_tensors(loss).empty());
      std::ranges::copy(losses.to_host(), std::back_inserter(values));
      return values;
    };
    CHECK(results(uniform[3]) == results(uniform[0]));
    CHECK(results(mixed[0]) == results(uniform[0]));
  }
}

TEST_CASE("a model refuses modes for another number of blocks") {
  Decoder model(small_config());
  CHECK(error_message([&] { model.set_recompute({none}); }) != "(no error)");
}

}  // namespace sluice::test::gpt2_recompute_test
