#include "bench/kernels/buffers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/rng.h"
#include "kernels/base/dtype.h"

namespace sluice::bench {
namespace {

constexpr std::size_t alignment = 256;

/// Random numbers are drawn once and repeated. The odd period keeps rows from being equal.
constexpr std::int64_t period = (std::int64_t{1} << 20) + 7;

std::size_t aligned(std::size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

const std::vector<float>& normal_numbers() {
  static const std::vector<float> numbers = [] {
    std::vector<float> made(static_cast<std::size_t>(period));
    fill_normal(random_key(1337, "bench"), 0, 1.0, made);
    return made;
  }();
  return numbers;
}

double number(Filling filling, std::size_t at) {
  constexpr std::uint64_t key = 0xBE7C4;
  switch (filling) {
    case Filling::normal:
      return static_cast<double>(normal_numbers()[at]);
    case Filling::logits:
      return 4.0 * static_cast<double>(normal_numbers()[at]);
    case Filling::positive:
      return 0.5 + uniform(key, at);
    case Filling::unit:
      return uniform(key, at);
    case Filling::tokens:
      return std::floor(uniform(key, at) * static_cast<double>(Extent::vocabulary));
    case Filling::codes:  // of 8 bits, from -127 to 127
      return std::round(254 * uniform(key, at)) - 127;
    case Filling::one:
      return 1;
  }
  return 0;
}

template <class T>
void put(std::byte* to, double value) {
  T stored;
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::int32_t>)
    stored = static_cast<T>(value);
  else
    stored = static_cast<T>(static_cast<float>(value));
  std::memcpy(to, &stored, sizeof stored);
}

template <class T>
double get(const std::byte* from) {
  T stored;
  std::memcpy(&stored, from, sizeof stored);
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::int32_t>)
    return static_cast<double>(stored);
  else
    return static_cast<double>(static_cast<float>(stored));
}

template <class Body>
void dispatch_all(DType dtype, Body&& body) {
  if (dtype == DType::i32) return body.template operator()<std::int32_t>();
  if (dtype == DType::i8) return body.template operator()<std::int8_t>();
  dispatch_floating(dtype, body);
}

/// Calls body(value index, byte offset) for every element, skipping the gaps between rows.
template <class Body>
void each_element(const Operand& operand, Body&& body) {
  const std::int64_t columns = operand.row_stride != 0 ? operand.shape[1] : operand.elements();
  const std::int64_t rows = operand.row_stride != 0 ? operand.shape[0] : 1;
  const std::size_t size = size_of(operand.dtype);
  std::size_t index = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j, ++index)
      body(index, static_cast<std::size_t>(i * operand.row_stride + j) * size);
  }
}

}  // namespace

std::size_t Buffers::bytes_for(const Problem& problem) {
  std::size_t sum = 0;
  for (const auto& operand : problem.operands)
    sum += aligned(operand.bytes());
  return sum;
}

Buffers::Buffers(const DevicePtr& device, const Problem& problem, int copies)
    : device_(device),
      layout_(problem.operands),
      block_(device, bytes_for(problem) * static_cast<std::size_t>(copies)) {
  const std::size_t bytes = bytes_for(problem);
  for (int copy = 0; copy < copies; ++copy) {
    std::byte* address = block_.start() + bytes * static_cast<std::size_t>(copy);
    Operands views;
    for (const auto& operand : layout_) {
      views.push_back(operand.view(address));
      address += aligned(operand.bytes());
    }
    operands_.push_back(std::move(views));
  }
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    const Operand& operand = layout_[i];
    const auto count = static_cast<std::size_t>(std::min(period, operand.elements()));
    const std::size_t size = size_of(operand.dtype);
    std::vector<std::byte> pattern(count * size);
    // Operands start at different offsets of the random numbers, so that a + b is not 2a.
    const std::size_t shift = i * 104729;
    dispatch_all(operand.dtype, [&]<class T>() {
      for (std::size_t j = 0; j < count; ++j)
        put<T>(pattern.data() + j * size,
               number(operand.filling, (j + shift) % static_cast<std::size_t>(period)));
    });
    repeat(i, pattern);
  }
  for (int copy = 1; copy < copies; ++copy)
    device_->runtime().copy_within(block_.start() + bytes * static_cast<std::size_t>(copy),
                                   block_.start(), bytes, device_->stream());
  device_->runtime().synchronize(device_->stream());
}

void Buffers::repeat(std::size_t index, std::span<const std::byte> pattern) {
  Runtime& runtime = device_->runtime();
  const Stream stream = device_->stream();
  std::byte* start = operands_[0][index].address;
  const std::size_t bytes = layout_[index].bytes();
  std::size_t filled = std::min(pattern.size(), bytes);
  runtime.copy_from_host(start, pattern.data(), filled, stream);
  while (filled < bytes) {
    const std::size_t more = std::min(filled, bytes - filled);
    runtime.copy_within(start + filled, start, more, stream);
    filled += more;
  }
}

void Buffers::poison(std::size_t index) {
  // All ones is a NaN in every floating type and -1 in an integer.
  const std::vector<std::byte> ones(std::size_t{1} << 16, std::byte{0xFF});
  repeat(index, ones);
}

std::vector<double> Buffers::download(std::size_t index) const {
  const Operand& operand = layout_[index];
  std::vector<std::byte> bytes(operand.bytes());
  device_->runtime().copy_to_host(bytes.data(), operands_[0][index].address, bytes.size(),
                                  device_->stream());
  std::vector<double> values(static_cast<std::size_t>(operands_[0][index].size()));
  dispatch_all(operand.dtype, [&]<class T>() {
    each_element(operand, [&](std::size_t at, std::size_t offset) {
      values[at] = get<T>(bytes.data() + offset);
    });
  });
  return values;
}

void Buffers::upload(std::size_t index, std::span<const double> values) {
  const Operand& operand = layout_[index];
  std::vector<std::byte> bytes(operand.bytes());
  dispatch_all(operand.dtype, [&]<class T>() {
    each_element(operand, [&](std::size_t at, std::size_t offset) {
      put<T>(bytes.data() + offset, values[at]);
    });
  });
  device_->runtime().copy_from_host(operands_[0][index].address, bytes.data(), bytes.size(),
                                    device_->stream());
  device_->runtime().synchronize(device_->stream());
}

}  // namespace sluice::bench
