#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// A folder whose files are replaced together. The new files are written into a folder beside it,
/// under its temporary name (durable.h), and then the two folders are exchanged. A process that is
/// killed at any moment leaves either the old files or the new ones under the name.
///
/// Only files of the old folder whose names are `ours` are removed. Everything else, folders and
/// links included, moves to the new folder. If a killed writer has left such files outside, the
/// next writer moves them first.
///
/// If folders cannot be exchanged (some network file systems; a mount point; the current folder; a
/// read-only parent folder), the files are replaced one by one. The key file is moved away first
/// and put in place last, so a process killed meanwhile leaves a folder without the key file.
///
/// If several writers run at once, the files of the last one stay. Errors are those of File.
class ReplacedFolder {
 public:
  /// `key`: the file without which nobody reads the folder. `ours`: true for names of files that
  /// belong to the replaced contents. Makes the missing parents of `target`. If `target` is a link,
  /// the folder that it points to is replaced.
  ReplacedFolder(const std::filesystem::path& target, std::string key,
                 std::function<bool(std::string_view name)> ours);
  ReplacedFolder(const ReplacedFolder&) = delete;
  ReplacedFolder& operator=(const ReplacedFolder&) = delete;
  ~ReplacedFolder();  ///< without publish(): removes the new files; the folder is unchanged

  /// Folder for the new files. Sync each of them before publish(), which may be called only once.
  const std::filesystem::path& path() const { return staging_; }
  /// Returns once the new files are durably in place. The result has one sentence for each old
  /// folder that had to stay because files of somebody else in it could not be moved.
  std::vector<std::string> publish();

 private:
  using Path = std::filesystem::path;

  bool make_staging(const Path& temporary);
  std::optional<Path> change_places();
  Path replace_one_by_one();
  bool removable(const Path& file) const;
  std::string empty(const Path& folder) const;
  void empty_left_behind(const Path& inside, std::string_view base,
                         std::vector<std::string>& stayed) const;

  Path target_, staging_;
  std::string key_;
  std::function<bool(std::string_view)> ours_;
};

}  // namespace sluice
