#include "engine/io/replaced_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/io/durable.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Base names of temporary folders inside the folder, used if they cannot be beside it.
constexpr const char *new_inside = ".new", *old_inside = ".old";

std::string last_reason() {
  return std::generic_category().message(errno);
}

/// Returns a path whose last component is the folder's own name.
fs::path named(const fs::path& target) {
  if (!fs::is_directory(target)) {
    fs::path path = target;
    while ((path.filename().empty() || path.filename() == ".") && path.has_relative_path())
      path = path.parent_path();
    // If a file or a dangling link is in the way, this call throws the Error that names it.
    if (fs::symlink_status(path).type() != fs::file_type::not_found)
      create_directories_durably(path);
    return path;
  }
  const fs::path name = target.filename();
  if (name.empty() || name == "." || name == ".." || fs::is_symlink(target))
    return fs::canonical(target);
  return target;
}

/// True for a mount point, which cannot be renamed.
bool is_mount_point(const fs::path& folder) {
  struct statx status {};
  return ::statx(AT_FDCWD, folder.c_str(), 0, STATX_BASIC_STATS, &status) == 0 &&
         (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

/// Gives a new folder the owner and permissions of the folder that it will replace.
bool liken(const fs::path& folder, const fs::path& to) {
  struct stat mine {
  }, other{};
  if (::stat(folder.c_str(), &mine) != 0 || ::stat(to.c_str(), &other) != 0) return false;
  if ((mine.st_uid != other.st_uid || mine.st_gid != other.st_gid) &&
      ::chown(folder.c_str(), other.st_uid, other.st_gid) != 0)
    return false;
  return ::chmod(folder.c_str(), other.st_mode & 07777) == 0;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    found.push_back(at->path());
  std::ranges::sort(found);
  return found;
}

/// Renames without replacing anything.
bool move_to(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno == ENOENT && !fs::exists(fs::symlink_status(from))) return true;  // moved by another
  if (errno != EINVAL && errno != ENOSYS) return false;
  return !fs::exists(fs::symlink_status(to)) && ::rename(from.c_str(), to.c_str()) == 0;
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    fail(fmt::format("cannot rename {} to {}: {}", from.string(), to.string(), last_reason()));
}

}  // namespace

ReplacedFolder::ReplacedFolder(const fs::path& target, std::string key,
                               std::function<bool(std::string_view)> ours)
    : target_(named(target)), key_(std::move(key)), ours_(std::move(ours)) {
  try {
    create_directories_durably(directory_of(target_));
  } catch (const Error&) {
    create_directories_durably(target_);  // makes the message name the requested folder
    throw;
  }
  std::vector<std::string> later;  // publish() reports these if they still exist then
  empty_left_behind(directory_of(target_), target_.filename().string(), later);
  std::error_code none;
  const bool there = fs::is_directory(target_);
  const bool moves = !there || (::access(target_.c_str(), W_OK | X_OK) == 0 &&
                                !fs::equivalent(target_, fs::current_path(none), none) &&
                                !is_mount_point(target_));
  if (moves && make_staging(temporary_name(target_))) {
    if (!there || liken(staging_, target_)) return;
    ::rmdir(staging_.c_str());
  }
  // The error message takes errno from the last attempt.
  if (there && make_staging(temporary_name(target_ / new_inside))) return;
  fail(fmt::format("cannot make a folder {} {}: {}", there ? "in" : "beside", target_.string(),
                   last_reason()));
}

ReplacedFolder::~ReplacedFolder() {
  std::error_code ignored;
  // The staging folder holds only files written for this replacement.
  if (!staging_.empty()) fs::remove_all(staging_, ignored);
}

bool ReplacedFolder::make_staging(const fs::path& temporary) {
  if (::mkdir(temporary.c_str(), 0777) != 0) return false;
  staging_ = temporary;
  return true;
}

bool ReplacedFolder::removable(const fs::path& file) const {
  const std::string name = file.filename().string();
  if (fs::symlink_status(file).type() == fs::file_type::directory) return false;
  const std::string_view of = temporary_of(name);
  return ours_(name) || (!of.empty() && ours_(of) && writer_is_gone(name));
}

/// Moves files that are not ours to the target and removes the folder. Reports what had to stay.
std::string ReplacedFolder::empty(const fs::path& folder) const {
  std::vector<std::string> stayed;
  // Another writer may still move files here while it refers to the target as it was before.
  for (int round = 0; round < 3; ++round) {
    stayed.clear();
    bool moved = false;
    for (const fs::path& path : entries_of(folder)) {
      if (removable(path)) continue;
      if (move_to(path, target_ / path.filename()))
        moved = true;
      else
        stayed.push_back(path.filename().string());
    }
    if (moved) sync_directory(target_);
    for (const fs::path& path : entries_of(folder))
      if (removable(path)) ::unlink(path.c_str());
    if (::rmdir(folder.c_str()) == 0) {
      sync_directory(directory_of(folder));
      return {};
    }
    if (errno == ENOENT) return {};
  }
  return fmt::format("{} was in the folder {} before and stays in {}: it cannot be moved ({})",
                     fmt::join(stayed, ", "), target_.string(), folder.string(), last_reason());
}

/// Empties the folders in `inside` that are temporaries of `base` and whose writers have ended.
void ReplacedFolder::empty_left_behind(const fs::path& inside, std::string_view base,
                                       std::vector<std::string>& stayed) const {
  for (const fs::path& path : entries_of(inside)) {
    const std::string name = path.filename().string();
    if (temporary_of(name) != base || !writer_is_gone(name) ||
        fs::symlink_status(path).type() != fs::file_type::directory)
      continue;
    const std::string problem = empty(path);
    if (!problem.empty()) stayed.push_back(problem);
  }
}

/// Returns the folder that now has the old files; nothing if the file system cannot exchange them.
std::optional<fs::path> ReplacedFolder::change_places() {
  if (directory_of(staging_) == target_) return std::nullopt;
  while (::renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0) {
    if (fs::is_directory(target_)) return std::nullopt;
    if (::rename(staging_.c_str(), target_.c_str()) == 0) break;
    // Another writer may have made the target in the meantime.
    if (errno != ENOTEMPTY && errno != EEXIST)
      fail(fmt::format("cannot rename {} to {}: {}", staging_.string(), target_.string(),
                       last_reason()));
  }
  fs::path old = std::exchange(staging_, {});  // its files are no longer only ours
  sync_directory(directory_of(target_));
  return old;
}

/// Returns the folder that now has the old files.
fs::path ReplacedFolder::replace_one_by_one() {
  const File lock = lock_directory(target_);
  const fs::path aside = temporary_name(target_ / old_inside);
  if (::mkdir(aside.c_str(), 0777) != 0)
    fail(fmt::format("cannot make the folder {}: {}", aside.string(), last_reason()));
  const auto names_in = [&](const fs::path& folder) {
    std::vector<fs::path> names;
    for (const fs::path& path : entries_of(folder))
      if (removable(path)) names.push_back(path.filename());
    std::ranges::partition(names, [&](const fs::path& name) { return name == key_; });
    return names;
  };
  const std::vector<fs::path> old = names_in(target_), fresh = names_in(staging_);
  try {
    for (const fs::path& name : old) {
      rename_or_fail(target_ / name, aside / name);
      if (name == key_) sync_directory(target_);
    }
    for (auto name = fresh.rbegin(); name != fresh.rend(); ++name) {
      if (*name == key_) sync_directory(target_);
      rename_or_fail(staging_ / *name, target_ / *name);
    }
    sync_directory(target_);
  } catch (...) {
    for (const fs::path& name : fresh)
      if (!fs::exists(staging_ / name))
        ::rename((target_ / name).c_str(), (staging_ / name).c_str());
    for (auto name = old.rbegin(); name != old.rend(); ++name)
      ::rename((aside / *name).c_str(), (target_ / *name).c_str());
    ::rmdir(aside.c_str());
    throw;
  }
  return aside;
}

std::vector<std::string> ReplacedFolder::publish() {
  sync_directory(staging_);
  const auto changed = change_places();
  const fs::path old = changed ? *changed : replace_one_by_one();
  std::vector<std::string> stayed;
  if (const std::string problem = fs::exists(old) ? empty(old) : ""; !problem.empty())
    stayed.push_back(problem);
  empty_left_behind(directory_of(target_), target_.filename().string(), stayed);
  empty_left_behind(target_, new_inside, stayed);
  empty_left_behind(target_, old_inside, stayed);
  return stayed;
}

}  // namespace sluice
