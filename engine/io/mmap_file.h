#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "engine/io/file.h"

namespace sluice {

/// A whole file mapped read-only. Move only; the bytes stay where they are when it moves.
///
/// Touching a page that lies beyond the end of a file that shrank after it was mapped kills the
/// process with SIGBUS, and no check can wholly prevent that: another process may truncate at any
/// moment. Call check_unchanged() before each long pass to turn all but that race into an Error,
/// or use File::read_at (as safetensors and token files do), which has no such race.
class MmapFile {
 public:
  /// Errors: those of File::open and of the mapping. An empty file has empty bytes().
  explicit MmapFile(std::filesystem::path path);

  std::span<const std::byte> bytes() const { return {data_.get(), data_.get_deleter().size}; }
  const std::filesystem::path& path() const { return file_.path(); }

  /// Throws Error unless the file still has the size that was mapped.
  void check_unchanged() const;

 private:
  struct Unmap {
    std::size_t size;
    void operator()(const std::byte* data) const;
  };

  File file_;
  std::unique_ptr<const std::byte[], Unmap> data_{nullptr, Unmap{0}};
};

}  // namespace sluice
