#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// Element types of safetensors files that are supported.
enum class StoredType : std::uint8_t { F64, F32, F16, BF16, I64, I32, I16, U16, I8, U8, BOOL };

inline constexpr std::array all_stored_types = {StoredType::F64,  StoredType::F32, StoredType::F16,
                                                StoredType::BF16, StoredType::I64, StoredType::I32,
                                                StoredType::I16,  StoredType::U16, StoredType::I8,
                                                StoredType::U8,   StoredType::BOOL};

/// Bytes of one element.
constexpr std::size_t size_of(StoredType type) {
  switch (type) {
    case StoredType::F64:
    case StoredType::I64:
      return 8;
    case StoredType::F32:
    case StoredType::I32:
      return 4;
    case StoredType::F16:
    case StoredType::BF16:
    case StoredType::I16:
    case StoredType::U16:
      return 2;
    case StoredType::I8:
    case StoredType::U8:
    case StoredType::BOOL:
      return 1;
  }
  return 0;
}

/// Name of the type as it is written in the file.
constexpr std::string_view name_of(StoredType type) {
  switch (type) {
    case StoredType::F64:
      return "F64";
    case StoredType::F32:
      return "F32";
    case StoredType::F16:
      return "F16";
    case StoredType::BF16:
      return "BF16";
    case StoredType::I64:
      return "I64";
    case StoredType::I32:
      return "I32";
    case StoredType::I16:
      return "I16";
    case StoredType::U16:
      return "U16";
    case StoredType::I8:
      return "I8";
    case StoredType::U8:
      return "U8";
    case StoredType::BOOL:
      return "BOOL";
  }
  return "?";
}

/// One tensor of a safetensors file. Its elements are little-endian and row-major at bytes
/// [begin, end) of the data, which starts after the header.
struct StoredTensor {
  std::string name;
  StoredType type = StoredType::F32;
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t byte_size() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  ///< in the order of their bytes in the file
  std::map<std::string, std::string> metadata;
};

/// The longest header that the reference implementation accepts, in bytes.
inline constexpr std::uint64_t max_safetensors_header = 100'000'000;

/// Parses the JSON header of a file that holds `data_bytes` bytes after it. The tensors must cover
/// these bytes exactly, without overlap, and each range must have the size that its type and shape
/// imply. Errors are ErrorKind::usage and name `what` (the file), the tensor and the value.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           std::string_view what);

/// Formats the JSON header for tensors whose offsets are set.
std::string format_safetensors_header(const SafetensorsHeader& header);

/// Sets the offsets of the tensors so that they follow each other, and returns the sum of their
/// bytes. Error if a dimension is negative or a size does not fit in 63 bits.
std::uint64_t assign_offsets(std::vector<StoredTensor>& tensors);

}  // namespace sluice
