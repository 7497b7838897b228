#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace sluice {

/// An open file descriptor with its path. Interrupted and partial system calls are continued.
/// Every error names the path and the system's reason; a file to be read that is missing, is not
/// readable or is not a regular file is ErrorKind::usage, all else ErrorKind::runtime.
class File {
 public:
  /// For reading. Refuses anything but a regular file, so that a pipe or a terminal cannot block.
  static File open(std::filesystem::path path);
  /// For read() alone: a pipe, whose writer it waits for, or a regular file.
  static File open_stream(std::filesystem::path path);
  /// The same of the standard input, under that name.
  static File standard_input();
  /// For writing and reading; it has no name and is gone once it is closed.
  static File temporary(const std::filesystem::path& folder);
  /// For writing from the start; an existing file is emptied.
  static File create(std::filesystem::path path);
  /// For writing what is new: what is there already, be it a link, is an Error and stays as it is.
  static File create_new(std::filesystem::path path);
  /// For writing at the end, wherever that is then. What is wrong with the path is
  /// ErrorKind::usage.
  static File append(std::filesystem::path path);
  /// For sync() only.
  static File open_directory(std::filesystem::path path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();  ///< closes; a failure is reported by close() only

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  /// Bytes, as the file system says now.
  std::uint64_t size() const;

  /// Fills `out` from `offset`. A file that ends earlier (truncated since it was opened) is an
  /// Error, where a mapping would raise SIGBUS. Safe from several threads at once.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  /// The next bytes of a stream: as many as there are, at most so many; 0 at its end.
  std::size_t read(std::span<std::byte> out);
  void write(std::span<const std::byte> bytes);
  /// Cuts the file to this many bytes.
  void truncate(std::uint64_t bytes);
  /// Tells the system that its copy in memory of a part (0 bytes: to the end) is of no further use.
  void drop_cache(std::uint64_t offset, std::uint64_t bytes) const;
  /// Returns once the contents are on the disk. A directory on a file system that cannot sync
  /// directories counts as synced.
  void sync();
  void close();

 private:
  File(int descriptor, std::filesystem::path path);

  int descriptor_;
  std::filesystem::path path_;
};

}  // namespace sluice
