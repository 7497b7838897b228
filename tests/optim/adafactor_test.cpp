#include <cmath>
#include <span>

#include "engine/autograd.h"
#include "optim/make_optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"

namespace sluice::test::adafactor_test {
namespace {

using Bytes = std::vector<std::byte>;

/// The types in which a run stores what it trains.
struct Form {
  DType working = DType::f32;
  StateLayout layout = StateLayout::fp32;
  bool narrow_gradients = false;
};

/// Shapes on and off the kernels' blocks of 128 columns and 32 rows, one with two sums of row
/// moments, and vectors; on the CPU also one that is cut into blocks of more rows.
struct Model {
  DevicePtr device;
  std::vector<Tensor> tensors{9};
  ParameterSpace space;

  Model(DevicePtr where, const Form& form)
      : device(std::move(where)),
        space(declare(tensors, device->device().kind == DeviceKind::cpu), device, form.working,
              ParameterSpace::Use::training,
              {.layout = form.layout,
               .narrow_gradients = form.narrow_gradients,
               .chunk = 512,
               .whole_tensors = true}) {
    space.initialize(7);
  }

  static std::vector<Parameter> declare(std::vector<Tensor>& tensors, bool tall = false) {
    std::vector<Parameter> parameters{{"wte", {300, 57}, Initial::normal(0.02), &tensors[0], true},
                                      {"bias", {57}, Initial::constant(0), &tensors[1]},
                                      {"packed", {64, 256}, Initial::normal(0.5), &tensors[2]},
                                      {"odd", {33, 131}, Initial::normal(0.3), &tensors[3]},
                                      {"gain", {300}, Initial::constant(1), &tensors[4]},
                                      {"row", {1, 129}, Initial::normal(1), &tensors[5]},
                                      {"column", {70, 1}, Initial::normal(1), &tensors[6]},
                                      {"one", {1}, Initial::constant(0.25), &tensors[7]}};
    if (tall) parameters.push_back({"tall", {8300, 3}, Initial::normal(0.1), &tensors[8]});
    return parameters;
  }

  /// The size changes from step to step, so that updates are clipped in some; a row and a column
  /// of every matrix stay without gradients.
  void give_gradients(int step) {
    std::uint64_t seed = 100 * static_cast<std::uint64_t>(step);
    space.forget_gradients();
    for (const auto& slot : space.slots()) {
      const Tensor target = leaf_gradient_target(*slot.tensor, space.weight_dtype()).tensor;
      Values values = random_values(slot.size, seed++, step % 3 == 0 ? 1.5 : 0.25);
      const auto columns = static_cast<std::size_t>(slot.shape.back());
      for (std::size_t i = 0; slot.shape.size() == 2 && columns > 1 && i < values.size(); ++i)
        if (i % columns == columns / 2 || (i / columns == 20)) values[i] = 0;
      target.copy_bytes_from(
          bytes_of(Tensor::from_host(make_cpu_device(), slot.shape, target.dtype(), values)));
    }
  }
};

Tensor scale_of(const Model& model, double value) {
  return Tensor::from_host(model.device, {1}, model.space.weight_dtype(), {&value, 1});
}

Bytes field_of(Optimizer& optimizer, const ParameterSpace::Slot& slot, std::size_t field) {
  const StateField stored = optimizer.fields(slot)[field];
  Bytes bytes(static_cast<std::size_t>(stored.count) * size_of(stored.dtype));
  optimizer.read_state(slot, field, 0, bytes);
  return bytes;
}

/// All that training has changed.
std::vector<Bytes> outcome(const Model& model, Optimizer& optimizer) {
  std::vector<Bytes> all{bytes_of(model.space.working().flat()),
                         bytes_of(flat_weights(model.space))};
  for (const auto& slot : model.space.slots())
    for (std::size_t field = 0; field < optimizer.fields(slot).size(); ++field)
      all.push_back(field_of(optimizer, slot, field));
  return all;
}

double rms(const Values& values) {
  double sum = 0;
  for (const double value : values)
    sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

/// Algorithms 4 and 5 of Shazeer & Stern (2018) for one tensor, to the letter: sums, not means.
struct Reference {
  Values weight;
  std::size_t columns;  ///< 0: a vector
  Values row, column;   ///< a vector's second moment is in `column`

  Reference(Values start, const Shape& shape)
      : weight(std::move(start)),
        columns(shape.size() == 2 ? static_cast<std::size_t>(shape[1]) : 0),
        row(columns > 0 ? weight.size() / columns : 0),
        column(columns > 0 ? columns : weight.size()) {}

  void update(const Values& g, int step, double rate, const AdafactorOptions& o) {
    const double beta2 = 1 - std::pow(step, -0.8);
    Values r(row.size()), c(column.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double square = g[i] * g[i] + 1e-30;
      if (columns > 0) r[i / columns] += square;
      c[columns > 0 ? i % columns : i] += square;
    }
    double sum = 0;
    for (std::size_t i = 0; i < row.size(); ++i)
      sum += row[i] = beta2 * row[i] + (1 - beta2) * r[i];
    for (std::size_t i = 0; i < column.size(); ++i)
      column[i] = beta2 * column[i] + (1 - beta2) * c[i];
    Values u(g.size());
    for (std::size_t i = 0; i < g.size(); ++i)
      u[i] =
          g[i] / std::sqrt(columns > 0 ? row[i / columns] / sum * column[i % columns] : column[i]);
    const double size = o.scale_by_weights ? std::max(1e-3, rms(weight)) : 1;
    const double factor = rate * size / std::max(1.0, rms(u) / o.clip);
    const double keep = columns > 0 ? 1 - rate * o.weight_decay : 1;
    for (std::size_t i = 0; i < g.size(); ++i)
      weight[i] = keep * weight[i] - factor * u[i];
  }
};

void check_training(const DevicePtr& device, const Form& form, const AdafactorOptions& options) {
  Model model(device, form);
  const auto optimizer = make_adafactor(model.space, options);
  const auto& slots = model.space.slots();
  const auto weights = [&](const ParameterSpace::Slot& slot) {
    return flat_weights(model.space).slice(slot.offset, {slot.size}).to_host();
  };
  std::vector<Reference> references;
  for (const auto& slot : slots)
    references.emplace_back(weights(slot), slot.shape);
  for (int step = 1; step <= 20; ++step) {
    const double rate = 0.1 / step, scale = 0.3;
    model.give_gradients(step);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Values gradient = slots[i].tensor->grad().to_host();
      for (double& value : gradient)
        value *= scale;
      references[i].update(gradient, step, rate, options);
    }
    optimizer->step(rate, scale_of(model, scale));
  }
  const double tolerance = form.working == DType::f64 ? 1e-13 : 1e-6;
  std::size_t inside = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Reference& expected = references[i];
    CAPTURE(slots[i].name);
    CHECK(relative_l2(weights(slots[i]), expected.weight) <= tolerance);
    const auto fields = optimizer->fields(slots[i]);
    const bool matrix = expected.columns > 0;
    REQUIRE(fields.size() == (matrix ? 2 : 1));
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const bool row = matrix && f == 0;
      CHECK(fields[f].name == (!matrix ? "second_moment"
                               : row   ? "row_second_moment"
                                       : "column_second_moment"));
      Values moment = row ? expected.row : expected.column;
      REQUIRE(fields[f].count == static_cast<std::int64_t>(moment.size()));
      CHECK(fields[f].dtype == model.space.weight_dtype());
      if (matrix)
        for (double& value : moment)
          value /= static_cast<double>(expected.weight.size() / moment.size());
      const Bytes bytes = field_of(*optimizer, slots[i], f);
      const Tensor stored = Tensor::empty(make_cpu_device(), {fields[f].count}, fields[f].dtype);
      stored.copy_bytes_from(bytes);
      CHECK(relative_l2(stored.to_host(), moment) <= tolerance);
    }
    inside += expected.weight.size();
  }
  // The gaps between slots stay zero.
  std::size_t zeros = 0;
  for (const double value : model.space.working().flat().to_host())
    zeros += value == 0 ? 1 : 0;
  CHECK(zeros >= static_cast<std::size_t>(model.space.size()) - inside);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int64_t end = i + 1 < slots.size() ? slots[i + 1].offset : model.space.size();
    const std::int64_t gap = slots[i].offset + slots[i].size;
    if (end > gap)
      CHECK(model.space.working().slice(gap, {end - gap}).to_host() ==
            Values(static_cast<std::size_t>(end - gap)));
  }
}

constexpr Form forms[] = {{DType::f32},
                          {DType::f64},
                          {DType::f16},
                          {DType::bf16},
                          {DType::bf16, StateLayout::split},
                          {DType::bf16, StateLayout::split, true}};

bool on_gpu(const Form& form) {
  return form.working != DType::f64;
}

}  // namespace

TEST_CASE("Adafactor follows its definition over twenty steps", "[adafactor]") {
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  const DevicePtr device = open_device(kind);
  for (const Form& form : forms) {
    if (kind == DeviceKind::cuda && !on_gpu(form)) continue;
    CAPTURE(name_of(kind), name_of(form.working), name_of(form.layout), form.narrow_gradients);
    if (!form.narrow_gradients) check_training(device, form, {.weight_decay = 0.7});
    if (form.narrow_gradients || form.working == DType::f64)
      check_training(device, form, {.clip = 0.6, .scale_by_weights = false});
  }
}

TEST_CASE("a space of whole tensors has a chunk for every one of them", "[adafactor]") {
  const Model model(make_cpu_device(), {});
  const auto& slots = model.space.slots();
  const auto& chunks = model.space.chunks();
  REQUIRE(chunks.size() == slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    CHECK(chunks[i].offset == slots[i].offset);
    CHECK(chunks[i].size == slots[i].size);
    CHECK(chunks[i].gradient_offset == slots[i].gradient_offset);
    CHECK(chunks[i].row_length == (slots[i].shape.size() == 2 ? slots[i].shape[1] : 0));
    CHECK(chunks[i].decay == slots[i].decay);
    CHECK(chunks[i].residency == Residency::device);
  }
  // Nothing else fits Adafactor.
  std::vector<Tensor> tensors{9};
  const DevicePtr device = make_cpu_device();
  ParameterSpace cut(Model::declare(tensors), device, DType::f32, ParameterSpace::Use::training);
  CHECK_THROWS_AS(make_adafactor(cut, {}), Error);
  ParameterSpace away(
      Model::declare(tensors), device, DType::f32, ParameterSpace::Use::training,
      {.residency = {Residency::streamed}, .host = {.pinned = device}, .whole_tensors = true});
  CHECK_THROWS_AS(make_adafactor(away, {}), Error);
}

TEST_CASE("Adafactor on split master weights is Adafactor on whole ones, to the bit",
          "[adafactor]") {
  const DevicePtr device = open_device(GENERATE(from_range(device_kinds())));
  const auto train = [&](StateLayout layout) {
    Model model(device, {.working = DType::bf16, .layout = layout});
    const auto optimizer = make_adafactor(model.space, {.weight_decay = 0.1});
    for (int step = 1; step <= 20; ++step) {
      model.give_gradients(step);
      optimizer->step(1e-2, scale_of(model, 0.5));
    }
    return outcome(model, *optimizer);
  };
  const auto split = train(StateLayout::split), whole = train(StateLayout::fp32);
  REQUIRE(split.size() == whole.size());
  for (std::size_t i = 0; i < split.size(); ++i) {
    std::size_t different = 0;
    for (std::size_t j = 0; j < split[i].size(); ++j)
      different += split[i][j] != whole[i][j] ? 1 : 0;
    CAPTURE(i);
    CHECK(different == 0);
  }
}

TEST_CASE("Adafactor does not depend on threads, and resumes from its state", "[adafactor]") {
  const auto train = [](bool interrupted) {
    Model model(make_cpu_device(), {.working = DType::bf16, .layout = StateLayout::split});
    auto optimizer = make_adafactor(model.space, {});
    for (int step = 1; step <= 4; ++step) {
      if (interrupted && step == 3) {
        auto resumed = make_adafactor(model.space, {});
        for (const auto& slot : model.space.slots()) {
          for (std::size_t i = 0; i < resumed->fields(slot).size(); ++i) {
            const Bytes fresh = field_of(*resumed, slot, i);
            CHECK(fresh == Bytes(fresh.size()));  // starts from zero
            // The field is read in two pieces, as in a checkpoint of a large model.
            const Bytes bytes = field_of(*optimizer, slot, i);
            const std::int64_t half = resumed->fields(slot)[i].count / 2;
            const std::size_t cut = static_cast<std::size_t>(half) * sizeof(float);
            resumed->write_state(slot, i, 0, std::span(bytes).first(cut));
            resumed->write_state(slot, i, half, std::span(bytes).subspan(cut));
          }
        }
        resumed->set_updates(optimizer->updates());
        optimizer = std::move(resumed);
      }
      model.give_gradients(step);
      optimizer->step(1e-2, scale_of(model, 0.5));
    }
    return outcome(model, *optimizer);
  };
  CHECK(same_with_any_threads([&] { return train(false); }));
  const bool resumed_alike = train(true) == train(false);
  CHECK(resumed_alike);
}

TEST_CASE("Adafactor leaves everything where the scale is not finite", "[adafactor]") {
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  const DevicePtr device = open_device(kind);
  for (const Form& form : forms) {
    if (kind == DeviceKind::cuda && !on_gpu(form)) continue;
    CAPTURE(name_of(kind), name_of(form.working), name_of(form.layout));
    Model model(device, form);
    const auto optimizer = make_adafactor(model.space, {.weight_decay = 0.1});
    model.give_gradients(3);
    const auto after = [&](double scale) {
      optimizer->step(1e-2, scale_of(model, scale));
      return outcome(model, *optimizer);
    };
    const auto before = after(1);
    for (const double scale : {double{NAN}, double{INFINITY}}) {
      const bool kept = after(scale) == before;
      CHECK(kept);
    }
    const bool moves = after(1) != before;
    CHECK(moves);
  }
}

}  // namespace sluice::test::adafactor_test
