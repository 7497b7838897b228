#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/file.h"
#include "engine/io/output.h"

namespace sluice {

/// Element types of safetensors files that are supported.
enum class StoredType : std::uint8_t { F64, F32, F16, BF16, I64, I32, I16, U16, I8, U8, BOOL };

inline constexpr std::array all_stored_types = {StoredType::F64,  StoredType::F32, StoredType::F16,
                                                StoredType::BF16, StoredType::I64, StoredType::I32,
                                                StoredType::I16,  StoredType::U16, StoredType::I8,
                                                StoredType::U8,   StoredType::BOOL};

struct StoredTypeFacts {
  std::string_view name;  ///< as it is written in the file
  std::size_t bytes;      ///< of one element
};
/// In the order of StoredType.
inline constexpr StoredTypeFacts stored_type_facts[] = {
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4},
    {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};

constexpr std::size_t size_of(StoredType type) {
  return stored_type_facts[static_cast<std::size_t>(type)].bytes;
}
constexpr std::string_view name_of(StoredType type) {
  return stored_type_facts[static_cast<std::size_t>(type)].name;
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

/// Returns what comes before the data: the length of the header and the header, a multiple of 8
/// bytes. Sets the offsets of the tensors. Error (naming `what` the file is) if the names are not
/// unique valid UTF-8, or a dimension is negative.
std::vector<std::byte> safetensors_start(std::vector<StoredTensor>& tensors,
                                         const std::map<std::string, std::string>& metadata,
                                         std::string_view what);

/// Sets the offsets of the tensors so that they follow each other, and returns the sum of their
/// bytes. Error if a dimension is negative or a size does not fit in 63 bits.
std::uint64_t assign_offsets(std::vector<StoredTensor>& tensors);

/// Opens a safetensors file and checks its whole header; the data is read on demand. A file that
/// does not follow the format exactly is refused (ErrorKind::usage) with a sentence that names the
/// file, the tensor and the value. The caller checks the meaning of the contents: the tensors that
/// a model needs, their shapes, finite values. Takes n log n time in the header's size.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(std::filesystem::path path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Tensors in the order of their bytes in the file.
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  /// Returns null if the file has no such tensor. Valid while the reader exists and is not moved.
  const StoredTensor* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  /// Offset of the first data byte in the file.
  std::uint64_t data_start() const { return data_start_; }
  /// Fills `out` with bytes of `tensor`, which is one of tensors(), from its byte `offset` on.
  /// Thread-safe. A file that was truncated since it was opened is an Error.
  void read(const StoredTensor& tensor, std::uint64_t offset, std::span<std::byte> out) const;

 private:
  File file_;
  std::uint64_t data_start_ = 0;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> index_;  ///< name to position in tensors()
};

/// Writes a safetensors file front to back, so that tensors of any size need no memory. The data
/// starts at a multiple of 8 bytes. A writer destroyed without finish() leaves a partial file,
/// which SafetensorsReader refuses. To make a file appear at once, write another one and rename it.
class SafetensorsWriter {
 public:
  /// Writes the header. The tensors follow each other in the order given, and their offsets are
  /// computed here. Names must be unique valid UTF-8 and dimensions non-negative, else Error.
  SafetensorsWriter(std::filesystem::path path, std::vector<StoredTensor> tensors,
                    const std::map<std::string, std::string>& metadata);
  /// Same, but writes to `output`, which must outlive the writer.
  SafetensorsWriter(Output& output, std::vector<StoredTensor> tensors,
                    const std::map<std::string, std::string>& metadata);

  /// Tensors with their offsets, in the order in which write() expects the data.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

  /// Appends to the data, in pieces of any size.
  void write(std::span<const std::byte> bytes);
  /// Error unless exactly all bytes were written. Syncs the file, not its directory, and closes it.
  void finish();

 private:
  void begin(const std::map<std::string, std::string>& metadata);

  std::unique_ptr<Output> own_;
  Output& output_;
  std::vector<StoredTensor> tensors_;
  std::uint64_t data_bytes_ = 0;
  std::uint64_t written_ = 0;
};

}  // namespace sluice
