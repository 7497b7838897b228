#include "engine/io/stored_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "engine/io/json_document.h"
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

std::int64_t first_non_finite(const HostPiece& values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    double value = 0;
    if (values.dtype == DType::f64) {
      std::memcpy(&value, values.bytes.data() + i * 8, sizeof value);
    } else {
      float narrow = 0;
      std::memcpy(&narrow, values.bytes.data() + i * 4, sizeof narrow);
      value = static_cast<double>(narrow);
    }
    if (!std::isfinite(value)) return i;
  }
  return -1;
}

/// Converts elements [first, first + count) of a stored tensor to `dtype` and delivers them. `read`
/// fills a piece with the elements from a first one on, in the dtype in which `dtype` is summed.
template <class Read>
void deliver(const std::filesystem::path& file, const std::string& name, std::int64_t first,
             std::int64_t count, DType dtype, const TakeElements& take, const Read& read) {
  HostPiece values(accumulator_of(dtype), std::min(piece, count));
  HostPiece converted(dtype, std::min(piece, count));
  for (const std::int64_t end = first + count; first < end; first += piece) {
    const std::int64_t part = std::min(piece, end - first);
    read(first, values, part);
    const std::int64_t bad = first_non_finite(values, part);
    if (bad >= 0)
      fail(fmt::format("{}: tensor {} is not finite at element {}", file.string(), quote(name),
                       first + bad),
           ErrorKind::usage);
    run(Cast{.out = converted.view(part), .in = values.view(part), .half_away = true}, host);
    take(first, converted.first(part));
  }
}

}  // namespace

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
  deliver(reader.path(), stored.name, first, count, dtype, take,
          [&](std::int64_t at, HostPiece& values, std::int64_t part) {
            reader.read(stored, static_cast<std::uint64_t>(at) * size_of(*from), raw.first(part));
            run(Cast{.out = values.view(part), .in = raw.view(part)}, host);
          });
}

void read_floats(const GgufReader& reader, const GgufTensor& stored, std::int64_t first,
                 std::int64_t count, DType dtype, const TakeElements& take) {
  std::vector<float> raw(static_cast<std::size_t>(std::min(piece, count)));
  deliver(reader.path(), stored.name, first, count, dtype, take,
          [&](std::int64_t at, HostPiece& values, std::int64_t part) {
            const auto floats = std::span(raw).first(static_cast<std::size_t>(part));
            reader.read(stored, at, floats);
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
