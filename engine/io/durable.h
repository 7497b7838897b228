#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

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

/// Opens the folder and waits until no other process holds it so; closing it or ending lets it go.
/// A file system without locks gives one to everybody.
File lock_directory(const std::filesystem::path& path);

/// Makes the folder and those above it that are missing; their names are durable when this returns.
void create_directories_durably(const std::filesystem::path& path);

/// After a crash at any moment `path` holds its old contents or exactly `bytes`.
void write_file_durably(const std::filesystem::path& path, std::span<const std::byte> bytes);

// What will get its name later is written under a name that says who writes it:
// "<path>.tmp.<pid>.<started>.<place>". <pid> and <started> (clock ticks since the host's start; 0:
// not known) are decimal numbers, <place> is a CRC-32 of the host's name and the pid namespace in 8
// hexadecimal digits. No two processes have the same name for a path, also on several hosts or in
// several containers, and whoever comes later knows whose it was.

/// That name, of this process.
std::filesystem::path temporary_name(const std::filesystem::path& path);
/// What stands before ".tmp." in exactly such a name; empty of any other.
std::string_view temporary_of(std::string_view name);
/// Whether `name` is such a name and its writer has ended for sure. Of a process of another host or
/// another container nobody here can tell.
bool writer_is_gone(std::string_view name);

/// A file that appears under its name only when it is complete. It is written under the temporary
/// name, which must not exist. What a crash leaves of it, the next writer of this path removes. One
/// writer per path and process at a time.
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
