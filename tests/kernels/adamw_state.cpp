#include "tests/kernels/adamw_state.h"

#include <span>

#include "kernels/base/half.h"

namespace sluice::test {
namespace {

Tensor flat(const DevicePtr& device, DType dtype, const Values& values) {
  return Tensor::from_host(device, {static_cast<std::int64_t>(values.size())}, dtype, values);
}

template <class T>
Tensor flat(const DevicePtr& device, const std::vector<T>& values) {
  const Tensor tensor =
      Tensor::empty(device, {static_cast<std::int64_t>(values.size())}, dtype_for<T>());
  tensor.copy_bytes_from(std::as_bytes(std::span(values)));
  return tensor;
}

template <class T>
std::vector<T> elements_of(const Tensor& tensor) {
  std::vector<T> values(static_cast<std::size_t>(tensor.size()));
  tensor.copy_bytes_to(std::as_writable_bytes(std::span(values)));
  return values;
}

/// Decodes codes by the definition of their map.
Values decoded(const AdamWState& state, const Tensor& codes, const Tensor& scale, int widest) {
  const std::vector<double> magnitudes = values_of_map(widest);
  const Values scales = scale.to_host();
  Values values;
  std::int64_t i = 0;
  for (const std::uint8_t code : elements_of<std::uint8_t>(codes)) {
    const std::int64_t block =
        i / state.columns * state.row_blocks() + i % state.columns / AdamW::block;
    const bool negative = code >= magnitudes.size();
    const double magnitude = magnitudes.at(negative ? code - magnitudes.size() : code);
    values.push_back((negative ? -magnitude : magnitude) *
                     scales.at(static_cast<std::size_t>(block)));
    ++i;
  }
  return values;
}

}  // namespace

std::string Layout::name() const {
  static constexpr const char* names[] = {"master", "master and bf16", "master and f16", "split"};
  return std::string(name_of(first)) + " and " + std::string(name_of(second)) + ", weights " +
         names[static_cast<int>(weights)] + ", gradient " + std::string(name_of(grad));
}

std::vector<Layout> adamw_layouts() {
  std::vector<Layout> layouts;
  for (const auto& [m, v] : {std::pair{DType::f32, DType::f32},
                             {DType::bf16, DType::f32},
                             {DType::bf16, DType::bf16},
                             {DType::u8, DType::u8}})
    for (const Weights weights : {Weights::master, Weights::bf16, Weights::f16, Weights::split})
      for (const DType grad : {DType::f32, DType::bf16})
        layouts.push_back({m, v, weights, grad});
  return layouts;
}

std::vector<std::uint8_t> random_codes(std::int64_t count, std::uint64_t seed) {
  std::vector<std::uint8_t> codes;
  for (const double value : random_values(count, seed, 128)) {
    const auto code = static_cast<std::uint8_t>(value + 128);
    codes.push_back(code == 0x80 ? std::uint8_t{0} : code);
  }
  return codes;
}

AdamWState::AdamWState(const DevicePtr& device, const Layout& of, std::int64_t row_count,
                       std::int64_t row_length)
    : layout(of), rows(row_count), columns(row_length) {
  const std::int64_t count = rows * columns;
  const Values start = random_values(count, 1);
  if (layout.weights == Weights::split) {
    std::vector<BFloat16> high;
    std::vector<std::int16_t> low;
    for (const double value : start) {
      const SplitMaster halves(static_cast<float>(value));
      high.push_back(halves.high);
      low.push_back(halves.low);
    }
    working = flat(device, high);
    remainder = flat(device, low);
  } else {
    master = flat(device, layout.first == DType::f64 ? DType::f64 : DType::f32, start);
    // The initial contents must not matter.
    if (layout.weights != Weights::master)
      working = flat(device, layout.weights == Weights::bf16 ? DType::bf16 : DType::f16,
                     Values(start.size(), NAN));
  }
  if (layout.coded()) {
    Values scales = random_values(rows * row_blocks(), 4, 0.05);
    for (auto& scale : scales)
      scale += 0.1;
    first = flat(device, random_codes(count, 2));
    second = flat(device, random_codes(count, 3));
    first_scale = flat(device, DType::f32, scales);
    second_scale = flat(device, DType::f32, scales);
  } else {
    Values squares = random_values(count, 3, 0.3);
    for (auto& value : squares)
      value *= value;
    first = flat(device, layout.first, random_values(count, 2, 0.1));
    second = flat(device, layout.second, squares);
  }
  set_grad(random_values(count, 5, 0.5));
}

void AdamWState::set_grad(const Values& values) {
  grad = flat(first.device(), layout.grad, values);
}

void AdamWState::clear_moments() {
  for (const Tensor& tensor : {first, second, first_scale, second_scale})
    if (tensor) tensor.fill_zero();
}

AdamW AdamWState::op(std::int64_t begin, std::int64_t end) const {
  const auto part = [&](const Tensor& tensor, std::int64_t a_row) {
    return tensor ? tensor.slice(begin * a_row, {(end - begin) * a_row}).view() : View{};
  };
  return {.master = part(master, columns),
          .first_moment = part(first, columns),
          .second_moment = part(second, columns),
          .grad = part(grad, columns),
          .working = part(working, columns),
          .remainder = part(remainder, columns),
          .first_scale = part(first_scale, row_blocks()),
          .second_scale = part(second_scale, row_blocks()),
          .row_length = layout.coded() ? columns : 0,
          .rounding_key = 7,
          // Positions of more than 32 bits come up within the array.
          .first_element = (std::int64_t{1} << 32) - 1000 + begin * columns,
          .rate = 1e-2,
          .beta2 = 0.95,
          .weight_decay = 0.1,
          .correction1 = 0.271,
          .correction2 = 0.142625};
}

std::vector<std::vector<std::byte>> AdamWState::bytes() const {
  std::vector<std::vector<std::byte>> all;
  for (const Tensor& tensor :
       {master, working, remainder, first, second, first_scale, second_scale})
    if (tensor) tensor.copy_bytes_to(all.emplace_back(tensor.bytes()));
  return all;
}

Values AdamWState::weights() const {
  if (master) return master.to_host();
  const auto high = elements_of<BFloat16>(working);
  const auto low = elements_of<std::int16_t>(remainder);
  Values values;
  for (std::size_t i = 0; i < high.size(); ++i)
    values.push_back(SplitMaster::join(high[i], low[i]));
  return values;
}

Values AdamWState::first_values() const {
  return layout.coded() ? decoded(*this, first, first_scale, 64) : first.to_host();
}

Values AdamWState::second_values() const {
  if (!layout.coded()) return second.to_host();
  Values values = decoded(*this, second, second_scale, 128);
  for (auto& value : values)
    value *= value;
  return values;
}

}  // namespace sluice::test
