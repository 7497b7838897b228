#include "optim/make_optimizer.h"

#include <cmath>
#include <map>

#include "engine/autograd.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"

namespace sluice::test::optimizer_test {
namespace {

BFloat16 bf16_half_away(float value) {
  BFloat16 rounded;
  rounded.bits = BFloat16::round_half_away(value);
  return rounded;
}

Tensor scale_of(const ParameterSpace& space, double value) {
  return Tensor::from_host(space.device(), {1}, space.weight_dtype(), {&value, 1});
}

double norm_of(ParameterSpace& space) {
  space.clip_gradients(0);
  return space.gradient_norm();
}

using Use = ParameterSpace::Use;

/// A few parameters of all kinds: matrices and vectors in turn, sizes on and off the alignment, one
/// larger than a block of the norm.
struct Model {
  DevicePtr device = make_cpu_device(64 << 20);
  std::vector<Tensor> tensors{7};
  std::vector<Parameter> parameters;
  ParameterSpace space;

  explicit Model(DType working, Use use = Use::training)
      : parameters(declare(tensors)), space(parameters, device, working, use) {}

  static std::vector<Parameter> declare(std::vector<Tensor>& tensors) {
    return {{"wte", {1201, 57}, Initial::normal(0.02), &tensors[0]},
            {"wpe", {64, 2}, Initial::normal(0.01), &tensors[1]},
            {"ln.weight", {57}, Initial::constant(1), &tensors[2]},
            {"ln.bias", {57}, Initial::constant(0), &tensors[3]},
            {"attn.weight", {3, 5, 7}, Initial::normal(0.5), &tensors[4]},
            {"attn.bias", {1}, Initial::constant(0.25), &tensors[5]},
            {"head", {2, 33}, Initial::normal(1), &tensors[6]}};
  }
  /// Gradients for every slot; the gaps get none.
  void give_gradients(std::uint64_t seed) {
    for (const auto& slot : space.slots())
      set_gradient(space, slot, random_values(slot.size, seed++));
  }
};

std::vector<bool> inside_slots(const ParameterSpace& space) {
  std::vector<bool> inside(static_cast<std::size_t>(space.size()));
  for (const auto& slot : space.slots())
    std::fill_n(inside.begin() + slot.offset, slot.size, true);
  return inside;
}

/// Checks that `working` is what the state layout derives from `master`, bit for bit.
void check_derived(const ParameterSpace& space) {
  const Values master = flat_weights(space).to_host(), working = space.working().flat().to_host();
  for (std::size_t i = 0; i < master.size(); ++i) {
    const auto weight = static_cast<float>(master[i]);
    const float expected = space.working().dtype() == DType::bf16
                               ? static_cast<float>(bf16_half_away(weight))
                               : static_cast<float>(Half(weight));
    if (static_cast<float>(working[i]) != expected) FAIL(weight << " became " << working[i]);
  }
}

constexpr DType workings[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

TEST_CASE("parameters lie one after another in one space", "[optimizer]") {
  for (const DType dtype : workings) {
    CAPTURE(name_of(dtype));
    Model model(dtype);
    auto& space = model.space;
    const bool wide = dtype == DType::f32 || dtype == DType::f64;
    CHECK(space.has_master() == !wide);
    CHECK(space.working().dtype() == dtype);
    CHECK(space.weight_dtype() == accumulator_of(dtype));
    REQUIRE(space.slots().size() == model.parameters.size());
    std::int64_t end = 0, count = 0;
    for (std::size_t i = 0; i < space.slots().size(); ++i) {
      const auto& slot = space.slots()[i];
      CHECK(slot.name == model.parameters[i].name);
      CHECK(slot.shape == model.parameters[i].shape);
      CHECK(slot.size == element_count(slot.shape));
      CHECK(slot.offset == (end + 63) / 64 * 64);
      CHECK(slot.decay == (slot.shape.size() >= 2));
      CHECK(space.find(slot.name) == &slot);
      const Tensor& tensor = model.tensors[i];
      CHECK(tensor.shape() == slot.shape);
      CHECK(tensor.dtype() == dtype);
      CHECK(tensor.requires_grad());
      CHECK(tensor.view().address == space.working().slice(slot.offset, slot.shape).view().address);
      end = slot.offset + slot.size;
      count += slot.size;
    }
    CHECK(space.find("nothing") == nullptr);
    CHECK(space.parameters() == count);
    CHECK(space.size() >= end);
    CHECK(space.size() < end + 64);
    CHECK(space.working().flat().size() == space.size());
    std::int64_t at = 0;
    for (const auto& chunk : space.chunks()) {
      CHECK(chunk.offset >= at);
      at = chunk.offset + chunk.size;
      for (const auto& slot : space.slots()) {
        const auto first = std::max(chunk.offset, slot.offset);
        const auto last = std::min(at, slot.offset + slot.size);
        if (first >= last) continue;
        CHECK(slot.decay == chunk.decay);
        CHECK(slot.bulk == chunk.bulk);
        CHECK(chunk.row_length == (slot.bulk ? slot.shape.back() : 0));
        count -= last - first;
      }
    }
    CHECK(at <= space.size());
    CHECK(count == 0);  // every element lies in one chunk
  }
}

TEST_CASE("for inference there is only the working buffer", "[optimizer]") {
  Model model(DType::bf16, Use::inference);
  CHECK(model.space.chunks().empty());
  CHECK(model.device->arena().in_use() ==
        (model.space.working().flat().bytes() + Arena::alignment - 1) / Arena::alignment *
            Arena::alignment);
  CHECK_FALSE(model.tensors[0].requires_grad());
  model.space.initialize(1);
  Model training(DType::bf16);
  training.space.initialize(1);
  CHECK(bytes_of(model.space.working().flat()) == bytes_of(training.space.working().flat()));
}

TEST_CASE("a start depends on seed, name and element alone", "[optimizer]") {
  Model model(DType::f32);
  model.space.initialize(42);
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    const Values values = model.tensors[i].to_host();
    const auto& initial = model.parameters[i].initial;
    CAPTURE(model.parameters[i].name);
    if (initial.standard_deviation == 0) {
      CHECK(values == Values(values.size(), initial.value));
      continue;
    }
    double sum = 0;
    for (const double value : values)
      sum += value * value;
    const auto count = static_cast<double>(values.size());
    CHECK(std::sqrt(sum / count) ==
          Approx(initial.standard_deviation).epsilon(4 / std::sqrt(2 * count)));
  }
  // Another model with the same names in another order, and with other shapes around them.
  std::vector<Tensor> tensors{3};
  ParameterSpace other({{"head", {2, 33}, Initial::normal(1), &tensors[0]},
                        {"wte2", {5, 57}, Initial::normal(0.02), &tensors[1]},
                        {"wte", {700, 57}, Initial::normal(0.02), &tensors[2]}},
                       model.device, DType::f32, Use::training);
  other.initialize(42);
  CHECK(tensors[0].to_host() == model.tensors[6].to_host());
  const Values whole = model.tensors[0].to_host();
  CHECK(tensors[2].to_host() == Values(whole.begin(), whole.begin() + 700 * 57));
  CHECK(tensors[1].to_host() != Values(whole.begin(), whole.begin() + 5 * 57));
  other.initialize(43);
  CHECK(tensors[0].to_host() != model.tensors[6].to_host());
  // A 16-bit model starts from the same master.
  Model bf16(DType::bf16);
  bf16.space.initialize(42);
  CHECK(bytes_of(flat_weights(bf16.space)) == bytes_of(flat_weights(model.space)));
  check_derived(bf16.space);
}

TEST_CASE("working weights round ties as every state layout does", "[optimizer]") {
  Model model(DType::bf16);
  Values ties(static_cast<std::size_t>(model.space.size()));
  for (std::size_t i = 0; i < ties.size(); ++i) {
    const auto significand = static_cast<double>(129 + 2 * (i % 60));  // odd of 8 + 1 bits: a tie
    ties[i] = (i % 2 == 0 ? 1 : -1) * std::ldexp(significand + 128, -9);
  }
  const Tensor values = Tensor::from_host(model.device, {model.space.size()}, DType::f32, ties);
  set_weights(model.space, values);
  check_derived(model.space);
  CHECK(std::abs(model.space.working().flat().item(0)) > std::abs(ties[0]));
  CHECK(std::abs(model.space.working().flat().item(1)) > std::abs(ties[1]));
  // The optimizer derives them in its own pass, by the same rule: a step that changes nothing.
  model.space.working().flat().fill_zero();
  model.space.forget_gradients();
  model.space.zero_unused_gradients();
  make_adamw(model.space, {})->step(0);
  for (const auto& slot : model.space.slots())
    CHECK(bytes_of(flat_weights(model.space).slice(slot.offset, slot.shape)) ==
          bytes_of(values.slice(slot.offset, slot.shape)));
  check_derived(model.space);
}

TEST_CASE("gradients are forgotten, zeroed and measured as one", "[optimizer]") {
  for (const DType dtype : workings) {
    Model model(dtype);
    model.space.forget_gradients();
    model.space.zero_unused_gradients();
    CHECK(norm_of(model.space) == 0);
    model.give_gradients(1);
    double sum = 0;
    for (const double value : flat_gradients(model.space).to_host())
      sum += value * value;
    CHECK(sum > 10'000);
    CHECK(norm_of(model.space) ==
          Approx(std::sqrt(sum)).epsilon(dtype == DType::f64 ? 1e-12 : 1e-6));
    CHECK(same_with_any_threads([&] { return norm_of(model.space); }));
    model.space.zero_unused_gradients();  // all of them were reached
    CHECK(norm_of(model.space) > 1);
    model.space.forget_gradients();
    CHECK_FALSE(leaf_gradient_target(model.tensors[3], accumulator_of(dtype)).accumulate);
    model.space.zero_unused_gradients();  // all but ln.bias
    const double bias = norm_of(model.space);
    double expected = 0;
    for (const double value : model.tensors[3].grad().to_host())
      expected += value * value;
    CHECK(bias == Approx(std::sqrt(expected)).epsilon(1e-6));
  }
}

/// Algorithm 2 of Loshchilov & Hutter (2019) and momentum SGD, one number at a time.
struct Scalar {
  double weight, first = 0, second = 0;

  void adamw(double g, double rate, const AdamWOptions& o, bool decay, int step) {
    first = o.beta1 * first + (1 - o.beta1) * g;
    second = o.beta2 * second + (1 - o.beta2) * g * g;
    const double m = first / (1 - std::pow(o.beta1, step));
    const double v = second / (1 - std::pow(o.beta2, step));
    weight -= rate * ((decay ? o.weight_decay * weight : 0) + m / (std::sqrt(v) + o.epsilon));
  }
  void sgd(double g, double rate, const SgdOptions& o, bool decay) {
    first = o.momentum * first + g;
    weight -= rate * (first + (decay ? o.weight_decay * weight : 0));
  }
};

/// Trains for 20 steps beside the scalars; `update(scalar, gradient, rate, decay, step)`.
template <class Make, class Update>
void check_training(DType dtype, Make&& make, Update&& update) {
  CAPTURE(name_of(dtype));
  Model model(dtype);
  model.space.initialize(7);
  const auto optimizer = make(model.space);
  for (const auto& slot : model.space.slots())
    for (const auto& field : optimizer->fields(slot))
      CHECK(field.count == slot.size);
  std::vector<Scalar> scalars;
  for (const double weight : flat_weights(model.space).to_host())
    scalars.push_back({weight});
  const double gradient_scale = 0.3;
  for (int step = 1; step <= 20; ++step) {
    const double rate = 1e-2 / step;
    model.space.forget_gradients();
    model.give_gradients(static_cast<std::uint64_t>(100 * step));
    const Values gradient = flat_gradients(model.space).to_host();
    optimizer->step(rate, scale_of(model.space, gradient_scale));
    CHECK(optimizer->updates() == step);
    for (const auto& slot : model.space.slots())
      for (auto i = static_cast<std::size_t>(slot.offset);
           i < static_cast<std::size_t>(slot.offset + slot.size); ++i)
        update(scalars[i], gradient_scale * gradient[i], rate, slot.shape.size() >= 2, step);
  }
  Values expected, actual, gaps;
  const auto inside = inside_slots(model.space);
  const auto split = [&](const Tensor& tensor, Values& slots) {
    const Values all = tensor.to_host();
    for (std::size_t i = 0; i < all.size(); ++i)
      (inside[i] ? slots : gaps).push_back(all[i]);
  };
  split(flat_weights(model.space), actual);
  for (std::size_t i = 0; i < inside.size(); ++i)
    if (inside[i]) expected.push_back(scalars[i].weight);
  const double tolerance = dtype == DType::f64 ? 1e-13 : 1e-6;
  CHECK(relative_l2(actual, expected) <= tolerance);
  // Vectors weigh nothing beside the matrices in that norm: one by one as well.
  for (const auto& slot : model.space.slots()) {
    CAPTURE(slot.name);
    Values before, after;
    for (std::int64_t i = 0; i < slot.size; ++i)
      before.push_back(scalars[static_cast<std::size_t>(slot.offset + i)].weight);
    CHECK(relative_l2(flat_weights(model.space).slice(slot.offset, {slot.size}).to_host(),
                      before) <= 4 * tolerance);
  }
  Values working;
  split(model.space.working().flat(), working);
  CHECK(gaps == Values(gaps.size(), 0.0));
  if (model.space.has_master()) check_derived(model.space);
}

TEST_CASE("AdamW follows its definition over twenty steps", "[optimizer]") {
  const AdamWOptions options{.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.7};
  for (const DType dtype : workings)
    check_training(
        dtype, [&](ParameterSpace& space) { return make_adamw(space, options); },
        [&](Scalar& scalar, double g, double rate, bool decay, int step) {
          scalar.adamw(g, rate, options, decay, step);
        });
}

TEST_CASE("SGD follows its definition over twenty steps", "[optimizer]") {
  const SgdOptions options{.momentum = 0.6, .weight_decay = 0.7};
  for (const DType dtype : workings)
    check_training(
        dtype, [&](ParameterSpace& space) { return make_sgd(space, options); },
        [&](Scalar& scalar, double g, double rate, bool decay, int) {
          scalar.sgd(g, rate, options, decay);
        });
}

TEST_CASE("an update does not depend on threads, and resumes from its state", "[optimizer]") {
  const auto train = [](bool interrupted) {
    Model model(DType::bf16);
    model.space.initialize(7);
    auto optimizer = make_adamw(model.space, {});
    for (int step = 0; step < 4; ++step) {
      if (interrupted && step == 2) {
        auto resumed = make_adamw(model.space, {});
        for (const auto& slot : model.space.slots()) {
          const auto fields = resumed->fields(slot);
          REQUIRE(fields.size() == 2);
          for (std::size_t i = 0; i < 2; ++i) {
            CHECK(fields[i].name == (i == 0 ? "first_moment" : "second_moment"));
            const auto width = size_of(fields[i].dtype);
            std::vector<std::byte> bytes(static_cast<std::size_t>(fields[i].count) * width);
            resumed->read_state(slot, i, 0, bytes);
            CHECK(bytes == std::vector<std::byte>(bytes.size()));  // starts from zero
            // The field is read in two pieces, as in a checkpoint of a large model.
            const std::size_t cut = static_cast<std::size_t>(fields[i].count / 2) * width;
            const auto at = static_cast<std::int64_t>(cut / width);
            optimizer->read_state(slot, i, 0, std::span(bytes).first(cut));
            optimizer->read_state(slot, i, at, std::span(bytes).subspan(cut));
            resumed->write_state(slot, i, 0, std::span(bytes).first(cut));
            resumed->write_state(slot, i, at, std::span(bytes).subspan(cut));
          }
        }
        resumed->set_updates(optimizer->updates());
        optimizer = std::move(resumed);
      }
      model.space.forget_gradients();
      model.give_gradients(static_cast<std::uint64_t>(step));
      optimizer->step(1e-3, scale_of(model.space, 0.5));
    }
    return std::pair(bytes_of(model.space.working().flat()), bytes_of(flat_weights(model.space)));
  };
  CHECK(same_with_any_threads([&] { return train(false); }));
  CHECK(train(false) == train(true));
}

TEST_CASE("a scale that is not finite changes nothing", "[optimizer]") {
  for (const DType dtype : workings) {
    for (const bool sgd : {false, true}) {
      Model model(dtype);
      model.space.initialize(7);
      const auto optimizer = sgd ? make_sgd(model.space, {}) : make_adamw(model.space, {});
      model.give_gradients(3);
      const auto after = [&](double scale) {
        optimizer->step(1e-2, scale_of(model.space, scale));
        std::vector all{bytes_of(model.space.working().flat()),
                        bytes_of(flat_weights(model.space))};
        for (std::size_t field = 0; field < optimizer->fields(model.space.slots()[0]).size();
             ++field)
          all.push_back(bytes_of(flat_state(model.space, *optimizer, field)));
        return all;
      };
      const auto before = after(1);
      CHECK(after(NAN) == before);
      CHECK(after(INFINITY) == before);
    }
  }
}

}  // namespace
}  // namespace sluice::test::optimizer_test
