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

  /// Bytes of the whole file.
  std::uint64_t bytes() const { return data_start_ + data_bytes_; }
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
  std::uint64_t data_start_ = 0, data_bytes_ = 0;
  std::uint64_t written_ = 0;
};

}  // namespace sluice
