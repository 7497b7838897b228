#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "engine/io/file.h"

namespace sluice {

// What survives a power failure. A new name is durable only when its file was synced before the
// rename and its directory after it; these functions keep that order. Errors are
// those of File: they name the path and the system's reason.

void sync_file(const std::filesystem::path& path);
void sync_directory(const std::filesystem::path& path);

/// Renames, replacing `to`, and syncs the directories of both. The contents of `from` must have
/// been synced. Both must be on the same file system.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Makes the folder and those above it that are missing; their names are durable when this returns.
void create_directories_durably(const std::filesystem::path& path);

/// After a crash at any moment `path` holds its old contents or exactly `bytes`.
void write_file_durably(const std::filesystem::path& path, std::span<const std::byte> bytes);

/// A file that appears under its name only when it is complete. It is written beside it as
/// "<path>.tmp.<process id>", which nobody should read. What a crash leaves of it, the next writer
/// of this path removes. One writer per path and process at a time.
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path);
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  ~DurableFile();  ///< without commit(): removes the temporary, `path` is as it was before

  const std::filesystem::path& path() const { return path_; }
  void write(std::span<const std::byte> bytes) { temporary_.write(bytes); }
  /// Syncs and closes: nothing may be written afterwards. Of several files that belong together all
  /// are completed before the first is committed.
  void complete();
  /// Completes it if nobody has, and renames.
  void commit();

 private:
  std::filesystem::path path_;
  File temporary_;
  bool complete_ = false, committed_ = false;
};

}  // namespace sluice
