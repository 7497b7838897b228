#include "kernels/adamw.h"

#include <cmath>

#include "tests/kernels/adamw_state.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/gpu/devices.h"

namespace sluice::test::adamw_test {
namespace {

constexpr std::int64_t row_lengths[] = {1, 255, 256, 257, 1600};

/// Runs `body(device, layout)` for every device of this build and every layout.
template <class Body>
void each_layout(Body&& body) {
  for (const DeviceKind kind : device_kinds()) {
    const DevicePtr device = open_device(kind);
    for (const Layout& layout : adamw_layouts()) {
      CAPTURE(name_of(kind), layout.name());
      body(device, layout);
    }
  }
}

/// The update by its definition, of the numbers that the state holds.
struct Reference {
  Values weights, change, first, second;

  Reference(const AdamWState& state, const AdamW& op, double scale)
      : weights(state.weights()), first(state.first_values()), second(state.second_values()) {
    const Values grad = state.grad.to_host();
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const double g = scale * grad[i], before = weights[i];
      first[i] = op.beta1 * first[i] + (1 - op.beta1) * g;
      second[i] = op.beta2 * second[i] + (1 - op.beta2) * g * g;
      weights[i] -= op.rate * op.weight_decay * weights[i];
      weights[i] -= op.rate * (first[i] / op.correction1) /
                    (std::sqrt(second[i] / op.correction2) + op.epsilon);
      change.push_back(std::abs(weights[i] - before));
    }
  }
};

/// The largest magnitude of each block.
Values scales_of(const AdamWState& state, const Values& values) {
  Values scales(static_cast<std::size_t>(state.rows * state.row_blocks()));
  for (std::int64_t i = 0; i < state.rows * state.columns; ++i) {
    auto& scale = scales[static_cast<std::size_t>(i / state.columns * state.row_blocks() +
                                                  i % state.columns / AdamW::block)];
    scale = std::max(scale, std::abs(values[static_cast<std::size_t>(i)]));
  }
  return scales;
}

enum class Moment : std::uint8_t { first, second };

/// Returns how far a stored value may be from the computed one: less than the distance between the
/// two storable values around it. `scale` is that of its block.
double gap_at(Moment moment, DType dtype, double value, double scale) {
  // The rounding error of computing in fp32 (or fp64), where m may cancel.
  const double rounding = 1e-6 * std::abs(value) + (moment == Moment::first ? 2e-8 : 0);
  if (dtype == DType::f64) return 1e-14 * std::abs(value) + (moment == Moment::first ? 4e-17 : 0);
  if (dtype == DType::f32) return rounding;
  if (dtype == DType::bf16) return std::ldexp(1.0, std::ilogb(value) - 7) + rounding;
  static const std::vector<double> maps[] = {values_of_map(64), values_of_map(128)};
  const std::vector<double>& values = maps[static_cast<int>(moment)];
  const double x = std::min(std::abs(value) / scale, 1.0);
  std::size_t above = 1;
  while (above + 1 < values.size() && values[above] < x)
    ++above;
  return (values[above] - values[above - 1]) * scale * 1.001 + rounding;
}

void check_moments(const AdamWState& state, const Reference& expected) {
  Values roots = expected.second;
  for (auto& value : roots)
    value = std::sqrt(value);
  Values first_scales, second_scales;
  if (state.layout.coded()) {
    first_scales = scales_of(state, expected.first);
    second_scales = scales_of(state, roots);
    CHECK(relative_l2(state.first_scale.to_host(), first_scales) <= 1e-6);
    CHECK(relative_l2(state.second_scale.to_host(), second_scales) <= 1e-6);
  }
  const Values first = state.first_values();
  Values second = state.second_values();
  for (std::size_t i = 0; i < first.size(); ++i) {
    std::size_t block = 0;
    if (state.layout.coded()) {
      const auto columns = static_cast<std::size_t>(state.columns);
      block = i / columns * static_cast<std::size_t>(state.row_blocks()) + i % columns / 256;
      second[i] = std::sqrt(second[i]);
    }
    const auto check_one = [&](DType dtype, double found, double wanted, const Values& scales,
                               Moment moment) {
      const double gap = gap_at(moment, dtype, wanted, scales.empty() ? 1 : scales[block]);
      if (!(std::abs(found - wanted) <= gap))
        FAIL(name_of(dtype) << " moment " << i << " is " << found << ", not " << wanted
                            << ", which has neighbours " << gap << " apart");
    };
    check_one(state.layout.first, first[i], expected.first[i], first_scales, Moment::first);
    check_one(state.layout.second, second[i], state.layout.coded() ? roots[i] : expected.second[i],
              second_scales, Moment::second);
  }
}

void check_weights(const AdamWState& state, const Reference& expected) {
  const Values weights = state.weights();
  const double rounding = state.layout.first == DType::f64 ? 1e-14 : 4e-7;
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (!(std::abs(weights[i] - expected.weights[i]) <=
          rounding * (std::abs(expected.weights[i]) + 4 * expected.change[i])))
      FAIL("weight " << i << " is " << weights[i] << ", not " << expected.weights[i]);
  if (!state.working) return;
  const Values working = state.working.to_host();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto master = static_cast<float>(weights[i]);
    BFloat16 narrow(0.0f);
    narrow.bits = BFloat16::round_half_away(master);
    const float wanted = state.layout.weights == Weights::f16 ? static_cast<float>(Half(master))
                                                              : static_cast<float>(narrow);
    if (working[i] != static_cast<double>(wanted))
      FAIL("working weight " << i << " is " << working[i] << ", not " << wanted);
  }
}

void check_update(const DevicePtr& device, const Layout& layout, std::int64_t rows,
                  std::int64_t columns) {
  const AdamWState state(device, layout, rows, columns);
  const Tensor scale =
      Tensor::from_host(device, {1}, state.master ? state.master.dtype() : DType::f32, Values{0.5});
  AdamW op = state.op();
  op.gradient_scale = scale.view();
  const Reference expected(state, op, 0.5);
  state.update(op);
  check_weights(state, expected);
  check_moments(state, expected);
}

}  // namespace

TEST_CASE("AdamW of every layout of state is its definition", "[adamw]") {
  each_layout([](const DevicePtr& device, const Layout& layout) {
    for (const std::int64_t columns : row_lengths) {
      CAPTURE(columns);
      check_update(device, layout, columns < 1000 ? 5 : 2, columns);
    }
  });
  check_update(open_device(DeviceKind::cpu), {DType::f64, DType::f64, Weights::master, DType::f64},
               3, 257);
}

TEST_CASE("AdamW changes nothing where the gradient's scale is not finite", "[adamw]") {
  each_layout([](const DevicePtr& device, const Layout& layout) {
    const AdamWState state(device, layout, 3, 257);
    const auto before = state.bytes();
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      const Tensor scale = Tensor::from_host(device, {1}, DType::f32, Values{bad});
      AdamW op = state.op();
      op.gradient_scale = scale.view();
      state.update(op);
      CHECK((state.bytes() == before));
    }
    state.update(state.op());
    CHECK((state.bytes() != before));
  });
}

TEST_CASE("AdamW gives the same bits however its range is cut", "[adamw]") {
  each_layout([](const DevicePtr& device, const Layout& layout) {
    for (const std::int64_t columns : {7, 257, 1600}) {
      CAPTURE(columns);
      const AdamWState whole(device, layout, 6, columns), cut(device, layout, 6, columns);
      whole.update(whole.op());
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 4}, {4, 6}})
        cut.update(cut.op(begin, end));
      CHECK((cut.bytes() == whole.bytes()));
    }
  });
}

TEST_CASE("AdamW gives the same bits with any number of threads", "[adamw]") {
  const DevicePtr device = open_device(DeviceKind::cpu);
  for (const Layout& layout : adamw_layouts()) {
    CAPTURE(layout.name());
    CHECK(same_with_any_threads([&] {
      const AdamWState state(device, layout, 90, 1600);
      state.update(state.op());
      return state.bytes();
    }));
    // The ops' own cuts are not the tasks'.
    const AdamWState whole(device, layout, 90, 1600), cut(device, layout, 90, 1600);
    whole.update(whole.op());
    cut.update(cut.op(0, 37));
    cut.update(cut.op(37, 90));
    CHECK((cut.bytes() == whole.bytes()));
  }
}

TEST_CASE("the rounding of AdamW's moments has no bias and follows its key", "[adamw]") {
  constexpr int keys = 400;
  constexpr double bound = 5 * 0.5 / 20;  // five deviations of a mean of 400, in gaps
  for (const DeviceKind kind : device_kinds()) {
    const DevicePtr device = open_device(kind);
    for (const auto& [m, v] :
         {std::pair{DType::bf16, DType::f32}, {DType::bf16, DType::bf16}, {DType::u8, DType::u8}}) {
      const Layout layout{m, v, Weights::split, DType::bf16};
      CAPTURE(name_of(kind), layout.name());
      const AdamWState start(device, layout, 1, 300);
      const Reference expected(start, start.op(), 1);
      Values first(300), second(300);
      std::vector<std::vector<std::vector<std::byte>>> bytes;
      for (int key = 0; key < keys; ++key) {
        const AdamWState state(device, layout, 1, 300);
        AdamW op = state.op();
        op.rounding_key = static_cast<std::uint64_t>(key);
        state.update(op);
        const Values m_found = state.first_values(), v_found = state.second_values();
        for (std::size_t i = 0; i < first.size(); ++i) {
          first[i] += m_found[i] / keys;
          second[i] += (layout.coded() ? std::sqrt(v_found[i]) : v_found[i]) / keys;
        }
        if (key < 2) bytes.push_back(state.bytes());
      }
      CHECK((bytes[0] != bytes[1]));
      Values wanted = expected.second;
      if (layout.coded())
        for (auto& value : wanted)
          value = std::sqrt(value);
      const Values m_scales = scales_of(start, expected.first), v_scales = scales_of(start, wanted);
      double worst = 0;
      for (std::size_t i = 0; i < first.size(); ++i) {
        worst = std::max(worst, std::abs(first[i] - expected.first[i]) /
                                    gap_at(Moment::first, m, expected.first[i], m_scales[i / 256]));
        if (v != DType::f32)
          worst = std::max(worst, std::abs(second[i] - wanted[i]) /
                                      gap_at(Moment::second, v, wanted[i], v_scales[i / 256]));
      }
      CHECK(worst < bound);
    }
  }
}

TEST_CASE("AdamW: a live second moment never becomes 0 among large ones", "[adamw]") {
  for (const DeviceKind kind : device_kinds()) {
    INFO(name_of(kind));
    const DevicePtr device = open_device(kind);
    AdamWState state(device, {DType::u8, DType::u8, Weights::master, DType::f32}, 1, 256);
    state.clear_moments();
    Values grad(256, 1e-9);
    grad[17] = 1;
    grad[100] = 0;
    state.set_grad(grad);
    const Values before = state.weights();
    for (std::uint64_t step = 1; step <= 20; ++step) {
      AdamW op = state.op();
      op.rounding_key = step;
      op.weight_decay = 0;
      op.correction1 = 1 - std::pow(op.beta1, static_cast<double>(step));
      op.correction2 = 1 - std::pow(op.beta2, static_cast<double>(step));
      state.update(op);
      const Values second = state.second_values();
      for (std::size_t i = 0; i < second.size(); ++i)
        if ((second[i] > 0) != (i != 100)) FAIL("v " << i << " is " << second[i]);
    }
    // No step is longer than AdamW's own bound, about the rate.
    const Values after = state.weights();
    for (std::size_t i = 0; i < after.size(); ++i)
      CHECK(std::abs(after[i] - before[i]) <= 20 * 1e-2 * 1.5);
    CHECK(after[100] == before[100]);
  }
}

TEST_CASE("AdamW: coded moments that are all 0 or hardly more", "[adamw]") {
  for (const DeviceKind kind : device_kinds()) {
    INFO(name_of(kind));
    const DevicePtr device = open_device(kind);
    AdamWState state(device, {DType::u8, DType::u8, Weights::split, DType::f32}, 2, 300);
    state.clear_moments();
    for (const double size : {0.0, 1e-44, 1e-38}) {
      CAPTURE(size);
      state.set_grad(Values(600, size));
      state.update(state.op());
      for (const double value : state.first_values())
        CHECK((value >= 0 && value <= size));
      if (size == 0)
        for (const Tensor& codes : {state.first, state.second}) {
          std::vector<std::byte> bytes(codes.bytes());
          codes.copy_bytes_to(bytes);
          CHECK(bytes == std::vector<std::byte>(600));
        }
      for (const double value : state.weights())
        if (!std::isfinite(value)) FAIL("a weight is not finite");
    }
  }
}

TEST_CASE("AdamW: a moment of 0 in a block of subnormal ones stays 0", "[adamw]") {
  for (const DeviceKind kind : device_kinds()) {
    INFO(name_of(kind));
    AdamWState state(open_device(kind), {DType::u8, DType::u8, Weights::master, DType::f32}, 1,
                     256);
    state.clear_moments();
    Values grad(256, 1e-39);  // m is a tenth of it, and 1 / 1e-40 is no fp32 number
    grad[3] = grad[200] = 0;
    state.set_grad(grad);
    state.update(state.op());
    const Values first = state.first_values();
    for (std::size_t i = 0; i < first.size(); ++i)
      if (!(first[i] >= 0 && first[i] <= 0.101 * grad[i])) FAIL("m " << i << " is " << first[i]);
    CHECK(state.first_scale.to_host()[0] == Approx(1e-40).epsilon(1e-3));
  }
}

TEST_CASE("AdamW: a gradient that is not finite shows in its block and in no other", "[adamw]") {
  for (const DeviceKind kind : device_kinds()) {
    INFO(name_of(kind));
    const DevicePtr device = open_device(kind);
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      AdamWState state(device, {DType::u8, DType::u8, Weights::master, DType::f32}, 2, 300);
      Values grad = random_values(600, 5);
      grad[300 + 7] = bad;
      state.set_grad(grad);
      state.update(state.op());
      const Values first = state.first_scale.to_host(), second = state.second_scale.to_host();
      const Values weights = state.weights();
      for (std::size_t block = 0; block < 4; ++block) {
        CHECK(std::isfinite(first[block]) == (block != 2));
        CHECK(std::isfinite(second[block]) == (block != 2));
      }
      for (std::size_t i = 0; i < weights.size(); ++i)
        if (std::isfinite(weights[i]) != (i != 307)) FAIL("weight " << i << " is " << weights[i]);
    }
  }
}

TEST_CASE("AdamW refuses arrays that are no layout", "[adamw]") {
  each_layout([](const DevicePtr& device, const Layout& layout) {
    const AdamWState state(device, layout, 4, 257);
    const auto message = [&](auto&& spoil) {
      AdamW op = state.op();
      spoil(op);
      return error_message([&] { state.update(op); });
    };
    const auto other = [&](DType dtype) { return Tensor::zeros(device, {4 * 257}, dtype); };
    const Tensor integers = other(DType::i32), halves = other(DType::f16),
                 narrow = other(DType::bf16);
    const Tensor codes = other(DType::u8), wide = other(DType::f32);
    const auto gradient = Contains("gradients of AdamW are");
    CHECK_THAT(message([&](AdamW& op) { op.grad = integers.view(); }), gradient);
    CHECK_THAT(message([&](AdamW& op) { op.grad = halves.view(); }), gradient);
    CHECK_THAT(message([&](AdamW& op) { op.grad = {}; }), Contains("needs two moments"));
    CHECK_THAT(message([&](AdamW& op) { op.first_moment = {}; }), Contains("needs two moments"));
    for (const auto& [m, v] : {std::pair{wide, narrow},
                               {narrow, codes},
                               {codes, wide},
                               {wide, codes},
                               {halves, halves},
                               {integers, wide}})
      CHECK_THAT(message([&, first = m, second = v](AdamW& op) {
                   op.first_moment = first.view(), op.second_moment = second.view();
                 }),
                 Contains("has no moments in " + std::string(name_of(m.dtype()))));
    CHECK_THAT(message([&](AdamW& op) { op.first_moment.shape[0] -= 1; }),
               Contains("differ in size"));
    CHECK_THAT(message([&](AdamW& op) { op.working = integers.view(); }),
               Contains(state.remainder ? "split master weight is" : "working weights are"));
    CHECK_THAT(message([&](AdamW& op) { op.remainder = integers.view(); }),
               Contains("split master weight is"));
    CHECK_THAT(message([&](AdamW& op) { op.master = {}, op.remainder = {}; }),
               Contains("needs master weights"));
    if (!layout.coded()) {
      CHECK_THAT(message([&](AdamW& op) { op.first_scale = wide.view(); }),
                 Contains("only u8 moments have scales"));
      return;
    }
    for (const std::int64_t length : {0, 3})
      CHECK_THAT(message([&](AdamW& op) { op.row_length = length; }), Contains("whole rows"));
    // Blocks do not cross rows: one row of the same elements has fewer.
    CHECK_THAT(message([&](AdamW& op) { op.row_length = 4 * 257; }), Contains("an f32 scale"));
    CHECK_THAT(message([&](AdamW& op) { op.first_scale = {}; }), Contains("an f32 scale"));
    CHECK_THAT(message([&](AdamW& op) { op.second_scale = halves.view(); }),
               Contains("an f32 scale"));
  });
}

}  // namespace sluice::test::adamw_test
