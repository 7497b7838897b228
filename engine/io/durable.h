#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "engine/io/file.h"

namespace sluice {

// Durable writes: files that survive a power failure. A new name is durable only if its file was
// synced before the rename and its directory after it; these functions keep that order. Errors are
// those of File: they name the path and the system's reason.

/// Returns the folder of a path: "." for a bare name.
std::filesystem::path directory_of(const std::filesystem::path& path);

void sync_file(const std::filesystem::path& path);
void sync_directory(const std::filesystem::path& path);

/// Renames, replacing `to`, and syncs the directories of both. The contents of `from` must have
/// been synced already. Both paths must be on the same file system.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Opens the folder and waits for an exclusive lock on it. Closing the file or ending the process
/// releases the lock. A file system without locks grants one to everybody.
File lock_directory(const std::filesystem::path& path);

/// Makes the folder and its missing parents. Their names are durable when this returns.
void create_directories_durably(const std::filesystem::path& path);

/// Replaces a file: after a crash at any moment `path` holds its old contents or exactly `bytes`.
void write_file_durably(const std::filesystem::path& path, std::span<const std::byte> bytes);
/// Same for text; makes the folder if it is absent.
void write_text_file(const std::filesystem::path& path, std::string_view text);

// A file that will get its final name later is written under a name that identifies the writer:
// "<path>.tmp.<pid>.<started>.<place>". <pid> and <started> (clock ticks since the host's boot; 0:
// not known) are decimal numbers; <place> is a CRC-32 of the host's name and the pid namespace in 8
// hexadecimal digits. No two processes have the same name for a path, even on several hosts or in
// several containers, and a later process can tell whose file it was.

/// Returns that name for this process.
std::filesystem::path temporary_name(const std::filesystem::path& path);
/// Returns the part before ".tmp." of exactly such a name; empty for any other name.
std::string_view temporary_of(std::string_view name);
/// True if `name` is such a name and its writer has certainly ended. False for a process on another
/// host or in another container, whose state cannot be known here.
bool writer_is_gone(std::string_view name);

/// A file that appears under its name only when it is complete. It is written under the temporary
/// name, which must not exist. The next writer of this path removes what a crash leaves behind.
/// Only one writer per path and process at a time. If `path` is a link, what it points to is
/// replaced. A device or a pipe is not replaced but written to.
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path);
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  ~DurableFile();  ///< without commit(): removes the temporary; `path` is unchanged

  const std::filesystem::path& path() const { return path_; }
  void write(std::span<const std::byte> bytes) { temporary_.write(bytes); }
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
    temporary_.write_at(offset, bytes);
  }
  /// Syncs and closes; nothing may be written afterwards. If several files belong together, all of
  /// them are completed before the first is committed.
  void complete();
  /// Completes the file if complete() was not called, and renames it.
  void commit();

 private:
  std::filesystem::path path_;
  bool in_place_;  ///< a device or a pipe
  File temporary_;
  bool complete_ = false, committed_ = false;
};

}  // namespace sluice
