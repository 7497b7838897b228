#include "engine/io/stored_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "engine/io/json_document.h"
#include "kernels/base/half.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"

namespace sluice {
namespace {

constexpr std::int64_t piece = 1 << 20;  // elements converted at a time
constexpr Stream host{{DeviceKind::cpu, 0}, 0};

/// In the order of DType.
constexpr StoredType stored_types[] = {StoredType::F64, StoredType::F32, StoredType::BF16,
                                       StoredType::F16, StoredType::I32, StoredType::I16,
                                       StoredType::U8,  StoredType::I8};

/// The dtype of floats that are stored as `type`; none if it holds no floats.
std::optional<DType> dtype_of(StoredType type) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    if (stored_type(dtype) == type) return dtype;
  return std::nullopt;
}

/// A host buffer of `elements` values, with a View for the conversion kernel.
struct HostPiece {
  HostPiece(DType type, std::int64_t elements)
      : bytes(static_cast<std::size_t>(elements) * size_of(type)), dtype(type) {}
  View view(std::int64_t count) { return View(bytes.data(), dtype, {count}); }
  std::span<std::byte> first(std::int64_t count) {
    return std::span(bytes).first(static_cast<std::size_t>(count) * size_of(dtype));
  }
  std::vector<std::byte> bytes;
  DType dtype;
};

/// Returns the least number that rounds to infinity: half a unit of the last place above the
/// largest one. Infinity for the widest type.
double end_of(DType type) {
  switch (type) {
    case DType::f32:
      return std::ldexp(2 - std::ldexp(1.0, -24), 127);
    case DType::bf16:
      return std::ldexp(2 - std::ldexp(1.0, -8), 127);
    case DType::f16:
      return 65520;
    default:
      return std::numeric_limits<double>::infinity();
  }
}

template <class T>
double value_at(std::span<const std::byte> values, std::int64_t i) {
  T value;
  std::memcpy(&value, values.data() + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return static_cast<double>(static_cast<std::conditional_t<sizeof(T) == 8, double, float>>(value));
}

struct Beyond {
  std::int64_t number;  ///< -1: there is none
  double value;
};

/// Finds the first value that is not below `end` in size, or is NaN.
template <class T>
Beyond first_beyond(std::span<const std::byte> values, double end) {
  constexpr std::int64_t block = 1 << 12;  // has no exit, so that it takes several at a time
  const auto count = static_cast<std::int64_t>(values.size() / sizeof(T));
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t last = std::min(count, begin + block);
    int found = 0;
    for (std::int64_t i = begin; i < last; ++i)
      found |= static_cast<int>(!(std::abs(value_at<T>(values, i)) < end));
    for (std::int64_t i = begin; found != 0 && i < last; ++i)
      if (const double value = value_at<T>(values, i); !(std::abs(value) < end)) return {i, value};
  }
  return {-1, 0};
}

Beyond first_beyond(std::span<const std::byte> values, DType dtype, double end) {
  switch (dtype) {
    case DType::f64:
      return first_beyond<double>(values, end);
    case DType::f32:
      return first_beyond<float>(values, end);
    case DType::bf16:
      return first_beyond<BFloat16>(values, end);
    case DType::f16:
      return first_beyond<Half>(values, end);
    default:
      return {-1, 0};
  }
}

/// Converts elements [first, first + count) of a stored tensor to `dtype` and delivers them.
/// `read` fills a piece with the elements from a first one on, in the dtype in which `dtype` is
/// summed, and checks that they fit into `dtype`.
template <class Read>
void deliver(std::int64_t first, std::int64_t count, DType dtype, const TakeElements& take,
             const Read& read) {
  HostPiece values(accumulator_of(dtype), std::min(piece, count));
  HostPiece converted(dtype, std::min(piece, count));
  for (const std::int64_t end = first + count; first < end; first += piece) {
    const std::int64_t part = std::min(piece, end - first);
    read(first, values, part);
    run(Cast{.out = converted.view(part), .in = values.view(part), .half_away = true}, host);
    take(first, converted.first(part));
  }
}

std::string name_in(const std::filesystem::path& file, const std::string& tensor) {
  return fmt::format("{}: tensor {}", file.string(), quote(tensor));
}

}  // namespace

void require_held(std::span<const std::byte> values, DType dtype, StoredType type,
                  std::int64_t first, const std::string& what, ErrorKind not_finite) {
  const auto kept = dtype_of(type);
  check(kept.has_value(), "weights are floats");
  const auto [number, value] = first_beyond(values, dtype, end_of(*kept));
  if (number < 0) return;
  const std::int64_t element = first + number;
  if (!std::isfinite(value))
    fail(fmt::format("{} is not finite at element {}", what, element), not_finite);
  const bool bf16 = std::abs(value) < end_of(DType::bf16),
             f32 = std::abs(value) < end_of(DType::f32);
  fail(fmt::format("{} is {:g} at element {}, too large for {}; {}", what, value, element,
                   name_of(*kept),
                   bf16  ? "bf16 and f32 can hold it"
                   : f32 ? "f32 can hold it"
                         : "no type here can hold it"),
       ErrorKind::numerical);
}

std::int64_t first_not_finite(std::span<const std::byte> values, DType dtype) {
  return first_beyond(values, dtype, std::numeric_limits<double>::infinity()).number;
}

StoredType stored_type(DType dtype) {
  return stored_types[static_cast<std::size_t>(dtype)];
}

void read_floats(const SafetensorsReader& reader, const StoredTensor& stored, std::int64_t first,
                 std::int64_t count, DType dtype, const TakeElements& take) {
  const auto from = dtype_of(stored.type);
  if (!from)
    fail(fmt::format("{}: tensor {} holds {}; weights must be F32, BF16, F16 or F64",
                     reader.path().string(), quote(stored.name), name_of(stored.type)),
         ErrorKind::usage);
  HostPiece raw(*from, std::min(piece, count));
  const std::string what = name_in(reader.path(), stored.name);
  deliver(first, count, dtype, take, [&](std::int64_t at, HostPiece& values, std::int64_t part) {
    reader.read(stored, static_cast<std::uint64_t>(at) * size_of(*from), raw.first(part));
    require_held(raw.first(part), *from, stored_type(dtype), at, what, ErrorKind::usage);
    run(Cast{.out = values.view(part), .in = raw.view(part)}, host);
  });
}

void read_floats(const GgufReader& reader, const GgufTensor& stored, std::int64_t first,
                 std::int64_t count, DType dtype, const TakeElements& take) {
  std::vector<float> raw(static_cast<std::size_t>(std::min(piece, count)));
  const std::string what = name_in(reader.path(), stored.name);
  deliver(first, count, dtype, take, [&](std::int64_t at, HostPiece& values, std::int64_t part) {
    const auto floats = std::span(raw).first(static_cast<std::size_t>(part));
    reader.read(stored, at, floats);
    require_held(std::as_bytes(floats), DType::f32, stored_type(dtype), at, what, ErrorKind::usage);
    View view(reinterpret_cast<std::byte*>(raw.data()), DType::f32, {part});
    run(Cast{.out = values.view(part), .in = view}, host);
  });
}

void read_floats(const SafetensorsReader& reader, const StoredTensor& stored,
                 const Tensor& target) {
  read_floats(reader, stored, 0, target.size(), target.dtype(),
              [&](std::int64_t first, std::span<std::byte> bytes) {
                const auto count =
                    static_cast<std::int64_t>(bytes.size() / size_of(target.dtype()));
                target.slice(first, {count}).copy_bytes_from(bytes);
              });
}

void convert_floats(std::span<std::byte> from, DType dtype, std::span<std::byte> to,
                    StoredType type) {
  const auto stored = dtype_of(type);
  if (!stored) fail(fmt::format("tensors cannot be stored as {}", name_of(type)));
  const auto count = static_cast<std::int64_t>(from.size() / size_of(dtype));
  check(to.size() == static_cast<std::size_t>(count) * size_of(type),
        "converted floats need a place each");
  run(Cast{.out = View(to.data(), *stored, {count}),
           .in = View(from.data(), dtype, {count}),
           .half_away = true},
      host);
}

void write_floats(SafetensorsWriter& writer, std::int64_t count, DType dtype,
                  const GiveElements& give, StoredType type) {
  std::vector<std::byte> raw, converted;
  for (std::int64_t first = 0; first < count; first += piece) {
    const auto part = static_cast<std::size_t>(std::min(piece, count - first));
    raw.resize(part * size_of(dtype));
    converted.resize(part * size_of(type));
    give(first, raw);
    convert_floats(raw, dtype, converted, type);
    writer.write(converted);
  }
}

void write_floats(SafetensorsWriter& writer, const Tensor& source, StoredType type) {
  write_floats(
      writer, source.size(), source.dtype(),
      [&](std::int64_t first, std::span<std::byte> bytes) {
        const auto count = static_cast<std::int64_t>(bytes.size() / size_of(source.dtype()));
        source.slice(first, {count}).copy_bytes_to(bytes);
      },
      type);
}

}  // namespace sluice
