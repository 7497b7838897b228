#include <algorithm>
#include <cmath>

#include "optim/make_optimizer.h"
#include "optim/newton_schulz.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/space.h"

namespace sluice::test::muon_test {
namespace {

struct Extent {
  std::int64_t rows, columns;
};
/// Wide, tall and square, with one panel of the products and with several, one of them short.
constexpr Extent extents[] = {{1, 1},   {1, 50},   {50, 1},   {7, 9},    {24, 24},
                              {64, 96}, {70, 300}, {300, 70}, {260, 260}};

using Matrix = std::vector<Values>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out(a.size(), Values(b.front().size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < b.size(); ++k)
      for (std::size_t j = 0; j < out[i].size(); ++j)
        out[i][j] += a[i][k] * b[k][j];
  return out;
}

Matrix transpose(const Matrix& a) {
  Matrix out(a.front().size(), Values(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < out.size(); ++j)
      out[j][i] = a[i][j];
  return out;
}

/// newtonschulz5 of https://kellerjordan.github.io/posts/muon, line by line, in double.
Values reference(const Values& values, const Extent& extent) {
  Matrix x;
  double squares = 0;
  for (std::int64_t i = 0; i < extent.rows; ++i) {
    const auto* const row = values.data() + i * extent.columns;
    x.emplace_back(row, row + extent.columns);
  }
  for (const double value : values)
    squares += value * value;
  for (Values& row : x)
    for (double& value : row)
      value /= std::max(std::sqrt(squares), 1e-7);
  const bool tall = extent.rows > extent.columns;
  if (tall) x = transpose(x);
  for (int step = 0; step < 5; ++step) {
    const Matrix a = product(x, transpose(x)), square = product(a, a);
    Matrix b = a;
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::size_t j = 0; j < a.size(); ++j)
        b[i][j] = -4.7750 * a[i][j] + 2.0315 * square[i][j];
    const Matrix bx = product(b, x);
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t j = 0; j < x[i].size(); ++j)
        x[i][j] = 3.4445 * x[i][j] + bx[i][j];
  }
  if (tall) x = transpose(x);
  Values flat;
  for (const Values& row : x)
    flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

Values orthogonalized(const DevicePtr& device, const Extent& extent, DType dtype,
                      const Values& values) {
  const NewtonSchulz products({extent.rows, extent.columns}, dtype);
  const Tensor memory = Tensor::zeros(device, {products.bytes()}, DType::u8);
  std::byte* const start = memory.view().address;
  const auto offset = [&](const View& view) { return view.address - start; };
  const auto bytes = extent.rows * extent.columns * static_cast<std::int64_t>(size_of(dtype));
  memory.slice(offset(products.matrix(start)), {bytes})
      .copy_bytes_from(bytes_of(
          Tensor::from_host(make_cpu_device(), {extent.rows, extent.columns}, dtype, values)));
  const View result = products.run(start, device->stream(), false);
  const Tensor out = Tensor::empty(make_cpu_device(), {extent.rows, extent.columns}, dtype);
  out.copy_bytes_from(bytes_of(memory.slice(offset(result), {bytes})));
  return out.to_host();
}

/// A model of matrices in both layouts, one of them in parts, with an embedding and a vector.
struct Model {
  DevicePtr device;
  std::vector<Tensor> tensors{5};
  ParameterSpace space;

  Model(DevicePtr where, DType working, StateLayout layout, bool whole = true)
      : device(std::move(where)),
        space(declare(tensors), device, working, ParameterSpace::Use::training,
              {.layout = layout, .whole_tensors = whole}) {
    space.initialize(7);
  }
  static std::vector<Parameter> declare(std::vector<Tensor>& tensors) {
    return {{"wte", {30, 24}, Initial::normal(0.02), &tensors[0], true},
            {"bias", {57}, Initial::constant(0), &tensors[1]},
            {.name = "in_out",
             .shape = {64, 96},
             .initial = Initial::normal(0.1),
             .tensor = &tensors[2],
             .in_out = true},
            {.name = "parts",
             .shape = {90, 60},
             .initial = Initial::normal(0.1),
             .tensor = &tensors[3],
             .parts = {{"q", 70}, {"k", 20}}},
            {"tall", {120, 33}, Initial::normal(0.1), &tensors[4]}};
  }
  void give_gradients(int step) {
    space.forget_gradients();
    std::uint64_t seed = 100 * static_cast<std::uint64_t>(step);
    for (const auto& slot : space.slots())
      set_gradient(space, slot, random_values(slot.size, seed++, 0.25));
  }
  Tensor scale(double value) const {
    return Tensor::from_host(device, {1}, space.weight_dtype(), {&value, 1});
  }
  Values weights(const std::string& name) const {
    const auto& slot = *space.find(name);
    return flat_weights(space).slice(slot.offset, {slot.size}).to_host();
  }
};

/// Muon's updates of a part of a matrix.
struct Updates {
  Extent extent;
  double size;  ///< MuonScale's factor
  Values weight, moment;

  Updates(Values start, const Extent& of, double factor)
      : extent(of), size(factor), weight(std::move(start)), moment(weight.size()) {}
  void update(const Values& gradient, double rate, const MuonOptions& o) {
    Values ahead(weight.size());
    for (std::size_t i = 0; i < weight.size(); ++i) {
      moment[i] = o.momentum * moment[i] + (1 - o.momentum) * gradient[i];
      ahead[i] = o.momentum * moment[i] + (1 - o.momentum) * gradient[i];
    }
    const Values direction = reference(ahead, extent);
    const double step = rate * o.rate_factor;
    for (std::size_t i = 0; i < weight.size(); ++i)
      weight[i] = weight[i] * (1 - step * o.weight_decay) - step * size * direction[i];
  }
};

void check_training(const DevicePtr& device, DType working, StateLayout layout,
                    const MuonOptions& options) {
  Model model(device, working, layout);
  const auto optimizer = make_muon(model.space, options);
  struct Expected {
    const char* slot;
    std::size_t first;
    Updates updates;
  };
  const bool rms = options.scale == MuonScale::rms;
  const auto part = [&](const char* slot, std::size_t first, const Extent& extent, double shape) {
    const Values all = model.weights(slot);
    const auto start = all.begin() + static_cast<std::ptrdiff_t>(first);
    const auto longer = static_cast<double>(std::max(extent.rows, extent.columns));
    return Expected{slot,
                    first,
                    {{start, start + extent.rows * extent.columns},
                     extent,
                     rms ? 0.2 * std::sqrt(longer) : std::sqrt(shape)}};
  };
  // The second number of a shape's scale is outputs over inputs, one at least.
  std::vector<Expected> parts{
      part("in_out", 0, {64, 96}, 96.0 / 64), part("parts", 0, {70, 60}, 70.0 / 60),
      part("parts", std::size_t{70} * 60, {20, 60}, 1), part("tall", 0, {120, 33}, 120.0 / 33)};
  for (int step = 1; step <= 5; ++step) {
    model.give_gradients(step);
    for (Expected& expected : parts) {
      const Values all = model.space.find(expected.slot)->tensor->grad().to_host();
      const auto start = all.begin() + static_cast<std::ptrdiff_t>(expected.first);
      Values gradient(start, start + static_cast<std::ptrdiff_t>(expected.updates.weight.size()));
      for (double& value : gradient)
        value *= 0.3;
      expected.updates.update(gradient, 0.01, options);
    }
    optimizer->step(0.01, model.scale(0.3));
  }
  const double bound = working == DType::f64    ? 1e-12
                       : working == DType::bf16 ? 2e-2  // products of 8 bits
                                                : 1e-5;
  for (const Expected& expected : parts) {
    CAPTURE(expected.slot, expected.first);
    const Values all = model.weights(expected.slot);
    const auto start = all.begin() + static_cast<std::ptrdiff_t>(expected.first);
    const Values actual(start, start + static_cast<std::ptrdiff_t>(expected.updates.weight.size()));
    CHECK(relative_l2(actual, expected.updates.weight) <= bound);
  }
}

bool on_gpu(DType dtype) {
  return dtype != DType::f64;
}

}  // namespace

TEST_CASE("orthogonalization follows the published iteration", "[muon]") {
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  const DevicePtr device = open_device(kind);
  for (const Extent& extent : extents) {
    const std::int64_t count = extent.rows * extent.columns;
    const Values values = random_values(count, 11, 3), expected = reference(values, extent);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      if (kind == DeviceKind::cuda && !on_gpu(dtype)) continue;
      CAPTURE(name_of(kind), extent.rows, extent.columns, name_of(dtype));
      const Values actual = orthogonalized(device, extent, dtype, values);
      double largest = 0;
      for (std::size_t i = 0; i < actual.size(); ++i)
        largest = std::max(largest, std::abs(actual[i] - expected[i]));
      CHECK(largest <= (dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-5 : 0.05));
    }
  }
}

TEST_CASE("an orthogonalized matrix has singular values about 1", "[muon]") {
  const Extent extent{40, 200};
  const Values values = orthogonalized(make_cpu_device(), extent, DType::f32,
                                       random_values(extent.rows * extent.columns, 12));
  // |u^T X| for unit vectors u lies between the least and the largest singular value.
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Values u = random_values(extent.rows, 100 + seed), image(200);
    double norm = 0, squares = 0;
    for (const double value : u)
      norm += value * value;
    for (std::size_t i = 0; i < u.size(); ++i)
      for (std::size_t j = 0; j < image.size(); ++j)
        image[j] += u[i] / std::sqrt(norm) * values[i * image.size() + j];
    for (const double value : image)
      squares += value * value;
    CHECK(std::sqrt(squares) == Approx(1).margin(0.3));
  }
}

TEST_CASE("Muon follows its definition part by part", "[muon]") {
  const DeviceKind kind = GENERATE(from_range(device_kinds()));
  const DevicePtr device = open_device(kind);
  struct Form {
    DType working;
    StateLayout layout;
  };
  for (const Form& form : {Form{DType::f64, StateLayout::fp32},
                           {DType::f32, StateLayout::fp32},
                           {DType::f16, StateLayout::fp32},
                           {DType::bf16, StateLayout::fp32},
                           {DType::bf16, StateLayout::split}}) {
    if (kind == DeviceKind::cuda && !on_gpu(form.working)) continue;
    CAPTURE(name_of(kind), name_of(form.working), name_of(form.layout));
    check_training(device, form.working, form.layout, {.momentum = 0.9, .rate_factor = 3});
    check_training(device, form.working, form.layout, {.weight_decay = 0, .scale = MuonScale::rms});
  }
}

TEST_CASE("Muon updates embeddings and vectors as AdamW does", "[muon]") {
  const DevicePtr device = open_device(GENERATE(from_range(device_kinds())));
  Model by_muon(device, DType::f32, StateLayout::fp32), by_adamw(device, DType::f32, {}, false);
  const AdamWOptions adamw{.beta2 = 0.9, .weight_decay = 0.3};
  const auto muon = make_muon(by_muon.space, {.rate_factor = 20, .adamw = adamw});
  const auto plain = make_adamw(by_adamw.space, adamw);
  for (int step = 1; step <= 3; ++step) {
    by_muon.give_gradients(step);
    by_adamw.give_gradients(step);
    muon->step(0.01, by_muon.scale(0.5));
    plain->step(0.01, by_adamw.scale(0.5));
  }
  for (const char* name : {"wte", "bias"}) {
    CAPTURE(name);
    CHECK((by_muon.weights(name) == by_adamw.weights(name)));
    CHECK(muon->fields(*by_muon.space.find(name)).size() == 2);
  }
  CHECK((by_muon.weights("tall") != by_adamw.weights("tall")));
  const auto fields = muon->fields(*by_muon.space.find("tall"));
  REQUIRE(fields.size() == 1);
  CHECK(fields[0].name == "momentum");
  CHECK(fields[0].count == 120 * 33);
}

TEST_CASE("Muon moves nothing along a gradient of zeros", "[muon]") {
  const DevicePtr device = open_device(GENERATE(from_range(device_kinds())));
  for (const DType working : {DType::f32, DType::bf16}) {
    Model model(device, working, StateLayout::fp32);
    const auto optimizer = make_muon(model.space, {.weight_decay = 0.5});
    const Values before = model.weights("tall");
    model.space.forget_gradients();
    for (const auto& slot : model.space.slots())
      set_gradient(model.space, slot, Values(static_cast<std::size_t>(slot.size)));
    optimizer->step(0.1, model.scale(1));
    Values decayed = before;
    for (double& value : decayed)
      value *= 1 - 0.1 * 0.5;
    CAPTURE(name_of(working));
    CHECK(relative_l2(model.weights("tall"), decayed) <= 1e-6);
  }
}

TEST_CASE("Muon leaves everything where the scale is not finite", "[muon]") {
  const DevicePtr device = open_device(GENERATE(from_range(device_kinds())));
  for (const StateLayout layout : {StateLayout::fp32, StateLayout::split}) {
    Model model(device, DType::bf16, layout);
    const auto optimizer = make_muon(model.space, {});
    model.give_gradients(1);
    const auto after = [&](double scale) {
      optimizer->step(0.01, model.scale(scale));
      std::vector<std::vector<std::byte>> all{bytes_of(flat_weights(model.space)),
                                              bytes_of(model.space.working().flat())};
      for (const auto& slot : model.space.slots()) {
        const StateField field = optimizer->fields(slot)[0];
        all.emplace_back(static_cast<std::size_t>(field.count) * size_of(field.dtype));
        optimizer->read_state(slot, 0, 0, all.back());
      }
      return all;
    };
    const auto before = after(1);
    for (const double scale : {double{NAN}, double{INFINITY}})
      CHECK((after(scale) == before));
    CHECK((after(1) != before));
  }
}

TEST_CASE("Muon has the same bits with any number of threads, split or whole", "[muon]") {
  const auto train = [](StateLayout layout) {
    Model model(make_cpu_device(), DType::bf16, layout);
    const auto optimizer = make_muon(model.space, {});
    for (int step = 1; step <= 3; ++step) {
      model.give_gradients(step);
      optimizer->step(0.01, model.scale(0.5));
    }
    return bytes_of(flat_weights(model.space));
  };
  CHECK(same_with_any_threads([&] { return train(StateLayout::split); }));
  CHECK((train(StateLayout::split) == train(StateLayout::fp32)));
}

TEST_CASE("Muon refuses a space that does not suit it", "[muon]") {
  const DevicePtr device = make_cpu_device();
  Model cut(device, DType::f32, StateLayout::fp32, false);
  CHECK_THROWS_AS(make_muon(cut.space, {}), Error);
  Model narrow(device, DType::bf16, StateLayout::bf16m);
  CHECK_THROWS_AS(make_muon(narrow.space, {}), Error);
  std::vector<Tensor> tensors{5};
  ParameterSpace on_cpu(
      Model::declare(tensors), device, DType::f32, ParameterSpace::Use::training,
      {.residency = {Residency::cpu}, .host = {.ordinary = device}, .whole_tensors = true});
  CHECK_THROWS_AS(make_muon(on_cpu, {}), Error);
}

}  // namespace sluice::test::muon_test
