#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace sluice {

/// An open file descriptor with its path. Interrupted and partial system calls are continued. Every
/// error names the path and the system's reason. A file to be read that is missing, unreadable or
/// not a regular file is ErrorKind::usage; all other errors are ErrorKind::runtime.
class File {
 public:
  /// Opens for reading. Only regular files are accepted, so that a pipe or terminal cannot block.
  static File open(std::filesystem::path path);
  /// Opens for read() only: a regular file, or a pipe, for whose writer it waits.
  static File open_stream(std::filesystem::path path);
  /// Same for the standard input; its path in messages is "the standard input".
  static File standard_input();
  /// Opens an unnamed file for writing and reading; closing it deletes it.
  static File temporary(const std::filesystem::path& folder);
  /// Opens for writing from the start and empties an existing file.
  static File create(std::filesystem::path path);
  /// Opens for writing from byte `offset` on, for one of several writers of a file. The first one
  /// creates it; what the others have written stays.
  static File create_part(std::filesystem::path path, std::uint64_t offset);
  /// Creates a file for writing. An existing file or link is an Error and stays as it is.
  static File create_new(std::filesystem::path path);
  /// Opens for appending at the current end of the file. Errors in the path are
  /// ErrorKind::usage.
  static File append(std::filesystem::path path);
  /// Opens a directory, for sync() only.
  static File open_directory(std::filesystem::path path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();  ///< closes; only close() reports a failure

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  /// Size in bytes, as the file system reports it now.
  std::uint64_t size() const;

  /// Fills `out` from `offset`. A file that ends earlier (truncated since it was opened) is an
  /// Error, whereas a mapping would raise SIGBUS. Thread-safe.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  /// Reads the next bytes of a stream, at most out.size(); returns their number, 0 at the end.
  std::size_t read(std::span<std::byte> out);
  void write(std::span<const std::byte> bytes);
  /// Overwrites bytes that have been written, from `offset` on.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Truncates the file to `bytes`.
  void truncate(std::uint64_t bytes);
  /// Tells the system to drop its cached pages of a part of the file (0 bytes: to the end).
  void drop_cache(std::uint64_t offset, std::uint64_t bytes) const;
  /// Returns once the contents are on the disk. On a file system that cannot sync directories a
  /// directory counts as synced, and so does a device.
  void sync();
  void close();

 private:
  File(int descriptor, std::filesystem::path path);

  int descriptor_;
  std::filesystem::path path_;
};

/// Limit of files of text that are read as a whole, in bytes.
inline constexpr std::uint64_t max_text_file = 100'000'000;

/// Returns the whole text of a file. Fails (usage) if it is absent, not a file, or over the limit.
std::string read_text_file(const std::filesystem::path& path,
                           std::uint64_t max_bytes = max_text_file);

}  // namespace sluice
