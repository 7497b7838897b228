#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace sluice {

/// A file that all ranks of the job have open (MPI-IO). All ranks make one and call its functions
/// together, in the same order. Errors are Error (runtime); they name the file and MPI's reason.
class MpiFile {
 public:
  enum class Access : std::uint8_t { read, write };

  /// Opens a file that exists. Its disk must be one that all ranks share.
  MpiFile(std::filesystem::path path, Access access);
  /// Closes the file, unless an exception is in flight: the others would not come to close it.
  ~MpiFile();
  MpiFile(const MpiFile&) = delete;
  MpiFile& operator=(const MpiFile&) = delete;

  /// Writes this rank's bytes at `offset`. `largest`: the most bytes that a rank writes.
  void write(std::uint64_t offset, std::span<const std::byte> bytes, std::uint64_t largest);
  /// Fills this rank's bytes from `offset` on. Error if the file ends before.
  void read(std::uint64_t offset, std::span<std::byte> bytes, std::uint64_t largest);
  /// Returns once all ranks' bytes are on the disk.
  void sync();

 private:
  struct Handle;
  std::filesystem::path path_;
  std::unique_ptr<Handle> handle_;
  int uncaught_;
};

}  // namespace sluice
