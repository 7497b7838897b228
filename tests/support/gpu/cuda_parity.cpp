#include "tests/support/gpu/cuda_parity.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

namespace sluice::test {
namespace {

View shaped(std::byte* address, const Argument& argument) {
  View view(address, argument.dtype, {});
  view.rank = static_cast<int>(argument.shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = argument.shape.size(); d-- > 0;) {
    view.shape.at(d) = argument.shape[d];
    view.strides.at(d) = stride;
    stride *= argument.shape[d];
  }
  return view;
}

std::int64_t count_of(const Argument& argument) {
  return std::accumulate(argument.shape.begin(), argument.shape.end(), std::int64_t{1},
                         std::multiplies<>());
}

bool same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

/// relative_l2, but a NaN or an infinity that is expected is no difference.
double difference(Values actual, Values expected) {
  for (std::size_t i = 0; i < actual.size(); ++i)
    if (!std::isfinite(expected[i]) && same(actual[i], expected[i])) actual[i] = expected[i] = 0;
  return relative_l2(actual, expected);
}

}  // namespace

Parity::Id Parity::add(Argument argument) {
  arguments_.push_back(std::move(argument));
  return {arguments_.size() - 1};
}

Parity::Id Parity::input(std::string name, DType dtype, std::vector<std::int64_t> shape,
                         Values values) {
  return add({.name = std::move(name),
              .dtype = dtype,
              .shape = std::move(shape),
              .values = std::move(values)});
}

Parity::Id Parity::input(std::string name, DType dtype, std::vector<std::int64_t> shape,
                         double scale) {
  Argument argument{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
  argument.values = random_values(count_of(argument), arguments_.size() + 1, scale);
  return add(std::move(argument));
}

Parity::Id Parity::output(std::string name, DType dtype, std::vector<std::int64_t> shape,
                          std::optional<double> bound) {
  return add({.name = std::move(name),
              .dtype = dtype,
              .shape = std::move(shape),
              .written = true,
              .bound = bound});
}

Parity::Id Parity::state(std::string name, DType dtype, std::vector<std::int64_t> shape,
                         Values values, std::optional<double> bound) {
  return add({.name = std::move(name),
              .dtype = dtype,
              .shape = std::move(shape),
              .values = std::move(values),
              .written = true,
              .bound = bound});
}

std::vector<Parity::Bytes> Parity::start() const {
  std::vector<Bytes> result;
  for (const auto& argument : arguments_)
    result.push_back(argument.values.empty() ? Bytes(static_cast<std::size_t>(count_of(argument)) *
                                                         size_of(argument.dtype),
                                                     std::byte{0xFF})
                                             : bytes_of(argument.dtype, argument.values));
  return result;
}

std::vector<Parity::Bytes> Parity::run_cpu(std::vector<Bytes> memory, const Body& body) const {
  std::vector<View> views;
  for (std::size_t i = 0; i < memory.size(); ++i)
    views.push_back(shaped(memory[i].data(), arguments_[i]));
  body(Views(std::move(views)), Stream{});
  return memory;
}

std::vector<Parity::Bytes> Parity::run_device(CudaDevice& device, const std::vector<Bytes>& before,
                                              const Body& body,
                                              std::optional<std::size_t> alone) const {
  std::vector<std::unique_ptr<DeviceArray>> arrays;
  std::vector<View> views;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const Argument& argument = arguments_[i];
    const std::int64_t offset = argument.written ? offsets_.written : offsets_.read;
    arrays.push_back(std::make_unique<DeviceArray>(device, argument.dtype, count_of(argument),
                                                   alone == i ? 1 : offset));
    arrays.back()->set_bytes(before[i]);
    views.push_back(shaped(arrays.back()->flat().address, argument));
  }
  body(Views(std::move(views)), device.stream());
  device.fetch();
  std::vector<Bytes> result;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!arrays[i]->guards_intact()) FAIL_CHECK(arguments_[i].name << ": written past its ends");
    result.push_back(arrays[i]->bytes());
  }
  if (!device.workspace_intact()) FAIL_CHECK("written past the end of the workspace");
  return result;
}

void Parity::compare(const Argument& argument, const Bytes& before, const Bytes& expected,
                     const Bytes& actual) const {
  if (!argument.written) {
    if (actual != before) FAIL_CHECK(argument.name << ": written, but only to be read");
    return;
  }
  const DType dtype = argument.read_as.value_or(argument.dtype);
  Bytes found = actual, wanted = expected;
  if (argument.stride > 0) {
    found.clear();
    wanted.clear();
    const std::size_t stride = static_cast<std::size_t>(argument.stride) * size_of(dtype);
    const std::size_t columns = static_cast<std::size_t>(argument.columns) * size_of(dtype);
    for (std::size_t row = 0; row < actual.size(); row += stride) {
      const auto begin = static_cast<std::ptrdiff_t>(row);
      const auto gap = static_cast<std::ptrdiff_t>(row + columns);
      const auto end = static_cast<std::ptrdiff_t>(row + stride);
      found.insert(found.end(), actual.begin() + begin, actual.begin() + gap);
      wanted.insert(wanted.end(), expected.begin() + begin, expected.begin() + gap);
      if (!std::equal(actual.begin() + gap, actual.begin() + end, before.begin() + gap))
        FAIL_CHECK(argument.name << ": written between its rows, after row " << row / stride);
    }
  }
  const Values results = values_of(dtype, found);
  const Values references = values_of(dtype, wanted);
  const double error = difference(results, references);
  const double bound = argument.bound.value_or(tolerance_of(dtype));
  if (error <= bound) return;  // a NaN is not
  std::size_t worst = 0;
  double farthest = -1;
  for (std::size_t i = 0; i < results.size() && !std::isnan(farthest); ++i) {
    if (same(results[i], references[i])) continue;
    const double distance = std::abs(results[i] - references[i]);
    if (!(distance <= farthest)) worst = i, farthest = distance;
  }
  FAIL_CHECK(argument.name << ": " << name_of(dtype) << " relative l2 error " << error
                           << ", allowed " << bound << "; result " << worst << " is "
                           << results[worst] << ", not " << references[worst]);
}

void Parity::compare_alone(const std::vector<Bytes>& before, const std::vector<Bytes>& expected,
                           const Body& body) const {
  constexpr std::size_t most = std::size_t{1} << 16;  // bytes; a large case shows no more
  std::size_t bytes = 0;
  for (const Bytes& each : before)
    bytes += each.size();
  if (!anywhere_ || bytes > most || offsets_.read != 0 || offsets_.written != 0) return;
  for (std::size_t alone = 0; alone < arguments_.size(); ++alone) {
    INFO("with " << arguments_[alone].name << " an element past an aligned address");
    try {
      const auto actual = run_device(*devices_.runs().front(), before, body, alone);
      for (std::size_t i = 0; i < actual.size(); ++i)
        compare(arguments_[i], before[i], expected[i], actual[i]);
    } catch (const Error& error) {
      FAIL_CHECK("it threw: " << error.what());
    }
  }
}

void Parity::compare(const Body& body) const {
  const std::vector<Bytes> before = start();
  const std::vector<Bytes> expected = run_cpu(before, body);
  std::vector<Bytes> first;
  int run = 0;
  for (CudaDevice* device : devices_.runs()) {
    std::vector<Bytes> actual;
    try {
      actual = run_device(*device, before, body);
    } catch (const Error& error) {
      FAIL_CHECK("run " << run << " threw: " << error.what());
      return;
    }
    if (run++ == 0) {
      for (std::size_t i = 0; i < actual.size(); ++i)
        compare(arguments_[i], before[i], expected[i], actual[i]);
      first = std::move(actual);
      continue;
    }
    for (std::size_t i = 0; i < actual.size(); ++i)
      if (actual[i] != first[i])
        FAIL_CHECK(arguments_[i].name << ": run " << run << " has other bits than run 1");
  }
  compare_alone(before, expected, body);
  SUCCEED();
}

}  // namespace sluice::test
