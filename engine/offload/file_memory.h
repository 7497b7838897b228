#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/offload/file_region.h"
#include "engine/offload/scratch_file.h"

namespace sluice {

/// Memory on a disk, for arrays that fit neither on a device nor in the memory of its host. It
/// divides a ScratchFile, which does the transfers, into regions, one for each array. (FileRing
/// streams regions of optimizer state through buffers.) For a plan there is no file, and regions
/// are only counted.
class FileMemory {
 public:
  using Region = FileRegion;

  /// Makes memory that only counts what is allocated.
  FileMemory() = default;
  /// Takes `capacity` bytes of the disk of `folder`.
  FileMemory(const std::filesystem::path& folder, std::uint64_t capacity);

  /// Returns a region of at least `bytes`, all zero.
  Region allocate(std::size_t bytes);
  std::uint64_t allocated() const { return allocated_; }
  /// Says what is unusual about the folder, in a sentence for the user; empty if nothing is.
  std::string caution() const { return file_ == nullptr ? "" : file_->caution(); }

  /// Read and write any part of a region, and wait for the disk. Of a plan, reads give zeros.
  void read(const Region& region, std::uint64_t first, std::span<std::byte> out);
  void write(const Region& region, std::uint64_t first, std::span<const std::byte> bytes);

  /// A region, and the memory from or to which a transfer copies all of it. The address must be a
  /// multiple of ScratchFile::alignment.
  struct Part {
    Region region;
    std::byte* at;
  };
  /// Starts to write some parts and then to read others, beside the caller, once the transfers in
  /// `after` are complete. Fails with the error of any of these. The memory must outlive it.
  std::shared_future<void> start(std::vector<Part> written, std::vector<Part> read,
                                 std::vector<std::shared_future<void>> after);

 private:
  std::uint64_t allocated_ = 0, capacity_ = 0;
  std::unique_ptr<ScratchFile> file_;  ///< none: only counts
};

}  // namespace sluice
