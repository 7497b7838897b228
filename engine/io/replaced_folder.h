#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// A folder whose files change together. They are written into a folder beside it, under its
/// temporary name (durable.h), and the two folders change places. Whoever is killed at any moment
/// leaves the old files or the new ones under the name.
///
/// Of the old folder only files with the names that are ours are removed. All else, be it folders
/// or links, moves to the new one. What a writer that was killed has left outside, the next one
/// moves first.
///
/// Where folders cannot change places (some network file systems; a mount point; the current
/// folder; a folder above that is not writable) the files do so one by one, and the key does
/// first and last: whoever is killed meanwhile leaves a folder without it.
///
/// Of several writers at the same time the last one's files stay. Errors are those of File.
class ReplacedFolder {
 public:
  /// `key`: the file without which nobody reads the folder. `ours`: whether a file of this name
  /// belongs to what is replaced. Makes the folders above `target` that are missing; where it is a
  /// link, the folder behind it is meant.
  ReplacedFolder(const std::filesystem::path& target, std::string key,
                 std::function<bool(std::string_view name)> ours);
  ReplacedFolder(const ReplacedFolder&) = delete;
  ReplacedFolder& operator=(const ReplacedFolder&) = delete;
  ~ReplacedFolder();  ///< without publish(): nothing is left, and the folder is as it was

  /// Where to write the new files, of which each must be synced before publish(). Only once.
  const std::filesystem::path& path() const { return staging_; }
  /// Returns once the new files are there for good: a sentence for each folder that had to stay
  /// because somebody's files in it could not be moved.
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
