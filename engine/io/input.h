#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/io/file.h"

namespace sluice {

/// Gives the bytes of a file, front to back.
class Input {
 public:
  virtual ~Input() = default;
  /// Fills `out` and returns the number of bytes: fewer than asked only at the end, then 0.
  virtual std::size_t read(std::span<std::byte> out) = 0;
};

/// Reads the raw bytes of the file, up to its present size. `file` must outlive the input.
std::unique_ptr<Input> open_input(const File& file);

/// Reads the decompressed contents of a gzip file of one or more members. Errors (usage) name the
/// file and the position of data that is damaged, ends early, or is followed by non-zero bytes.
std::unique_ptr<Input> open_gzip(const File& file);

}  // namespace sluice
