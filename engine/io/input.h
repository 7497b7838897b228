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
  /// Fills `out`; less of it only at the end, and 0 from then on.
  virtual std::size_t read(std::span<std::byte> out) = 0;
};

/// The file as it lies, as long as it is now. `file` must outlive the input.
std::unique_ptr<Input> open_input(const File& file);

/// What is compressed in it: one gzip member or several. Errors (usage) name the file and the
/// place: data that is damaged, ends early, or is followed by something else than zeros.
std::unique_ptr<Input> open_gzip(const File& file);

}  // namespace sluice
