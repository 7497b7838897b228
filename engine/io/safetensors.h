#pragma once

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
#include "engine/io/safetensors_header.h"

namespace sluice {

/// Opens a safetensors file and checks all of its header; the data is read on demand. A file that
/// is not exactly as the format says is refused (ErrorKind::usage) with a sentence that names the
/// file, the tensor and the value. What the values mean (which tensors a model needs, their
/// shapes, whether they are finite) is the caller's to check. Time is n log n in the header.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(std::filesystem::path path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// In the order of their bytes in the file.
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  /// Null when the file has no such tensor. Valid as long as the reader stays where it is.
  const StoredTensor* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  /// Where the data begins in the file.
  std::uint64_t data_start() const { return data_start_; }
  /// Fills `out` with the bytes of `tensor`, one of tensors(), from its byte `offset` on. Safe from
  /// several threads at once. A file that was truncated since it was opened is an Error.
  void read(const StoredTensor& tensor, std::uint64_t offset, std::span<std::byte> out) const;

 private:
  File file_;
  std::uint64_t data_start_ = 0;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> index_;  ///< name to position in tensors()
};

/// Writes a safetensors file front to back, so that tensors of any size need no memory. The data
/// starts at a multiple of 8 bytes. A writer destroyed without finish() leaves a partial file,
/// which SafetensorsReader refuses; for a file that appears at once, write beside and rename.
class SafetensorsWriter {
 public:
  /// Writes the header. The tensors follow each other in the order given; their offsets are
  /// computed here. Names must be unique valid UTF-8 and the shapes non-negative, else Error.
  SafetensorsWriter(std::filesystem::path path, std::vector<StoredTensor> tensors,
                    const std::map<std::string, std::string>& metadata);
  /// The same to wherever `output`, which outlives the writer, takes it.
  SafetensorsWriter(Output& output, std::vector<StoredTensor> tensors,
                    const std::map<std::string, std::string>& metadata);

  /// Of the whole file.
  std::uint64_t bytes() const { return data_start_ + data_bytes_; }
  /// With offsets, in the order in which write() expects the data.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

  /// Appends to the data, of which any piece may be written at a time.
  void write(std::span<const std::byte> bytes);
  /// Error unless exactly all bytes were written. Syncs the file, not its directory, and closes.
  void finish();

 private:
  void begin(const std::map<std::string, std::string>& metadata);

  std::unique_ptr<Output> own_;
  Output& output_;
  std::vector<StoredTensor> tensors_;
  std::uint64_t data_start_ = 0, data_bytes_ = 0;
  std::uint64_t written_ = 0;
};

}  // namespace sluice
