#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/offload/scratch_file.h"

namespace sluice {

/// Memory on a disk, for arrays that fit neither on a device nor in the memory of its host. It
/// divides a ScratchFile, which does the transfers, into regions, one for each array. (FileRing
/// streams regions of optimizer state through buffers.) For a plan there is no file, and regions
/// are only counted.
class FileMemory {
 public:
  struct Region {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;  ///< a multiple of ScratchFile::alignment; 0: none
  };

  /// Only counts.
  FileMemory() = default;
  /// Takes `capacity` bytes of the disk of `folder`.
  FileMemory(const std::filesystem::path& folder, std::uint64_t capacity);

  /// Returns a region of at least `bytes`, all zero.
  Region allocate(std::size_t bytes);
  std::uint64_t allocated() const { return allocated_; }
  /// What is not as it should be on this disk, as a sentence for the user; empty if all is well.
  std::string caution() const { return file_ == nullptr ? "" : file_->caution(); }

  /// Read and write any part of a region. They wait for the disk. Unread memory of a plan is zero.
  void read(const Region& region, std::uint64_t first, std::span<std::byte> out);
  void write(const Region& region, std::uint64_t first, std::span<const std::byte> bytes);

  /// What a transfer moves between regions and as many bytes of memory for each. `at` must be
  /// aligned.
  struct Part {
    Region region;
    std::byte* at;
  };
  /// Starts to write some parts and then to read others, beside the caller, once the transfers in
  /// `after` are complete. Their errors become its own. All memory must stay until it is complete.
  std::shared_future<void> start(std::vector<Part> written, std::vector<Part> read,
                                 std::vector<std::shared_future<void>> after);

 private:
  std::uint64_t allocated_ = 0, capacity_ = 0;
  std::unique_ptr<ScratchFile> file_;  ///< none: only counts
};

}  // namespace sluice
