#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "apps/checkpoint/checkpoint_manifest.h"

namespace sluice {

// A checkpoint is a folder step-NNNNNNNN in a run's folder of checkpoints. Under such a name it is
// complete or absent: it is written, and removed, as step-NNNNNNNN.tmp.<pid>. Checkpoints that a
// run abandons are moved to the folder set-aside beside them and never removed.

/// Returns the path of the checkpoint of a step, whether or not it exists.
std::filesystem::path checkpoint_path(const std::filesystem::path& folder, std::int64_t step);
/// Returns the step in a checkpoint's name; none if it is not such a name.
std::optional<std::int64_t> step_in_name(const std::filesystem::path& checkpoint);
/// Returns the folder of checkpoints that holds a checkpoint, even one that was set aside.
std::filesystem::path folder_of(const std::filesystem::path& checkpoint);

/// Returns the run's folder if the path of --resume names that or its folder of checkpoints;
/// otherwise an empty path.
std::filesystem::path run_of_resume(const std::string& resume);

/// Moves a checkpoint, or whatever has its name, to a free name in set-aside/. Returns its new
/// path.
std::filesystem::path set_aside(const std::filesystem::path& checkpoint);
/// Removes a checkpoint. It is renamed first, so that its name never stands for a part of it.
void remove_checkpoint(const std::filesystem::path& checkpoint);

/// Returns the final path of a complete checkpoint whose writer was killed before renaming it;
/// empty if it is not one, or the final name is taken. Only the holder of the run's lock may call
/// it, since a live writer may be about to rename it.
std::filesystem::path place_of_unnamed(const std::filesystem::path& temporary);
/// Renames such a checkpoint and returns its new path; anything else is left as it is.
std::filesystem::path named(const std::filesystem::path& checkpoint);
/// Removes only the temporaries that killed writers have left. Only the holder of the run's lock
/// may call it.
void remove_temporaries(const std::filesystem::path& folder);

/// A checkpoint that is being written under a temporary name beside its final path.
class NewCheckpoint {
 public:
  NewCheckpoint(const std::filesystem::path& folder, std::int64_t step);
  ~NewCheckpoint();  ///< removes it unless it was published
  NewCheckpoint(const NewCheckpoint&) = delete;
  NewCheckpoint& operator=(const NewCheckpoint&) = delete;

  /// The folder for its files, under its temporary name.
  const std::filesystem::path& folder() const { return temporary_; }
  /// Returns the path for one of its files, which must be synced before publish().
  std::filesystem::path file(const std::string& name) const { return temporary_ / name; }
  /// The final path.
  const std::filesystem::path& path() const { return path_; }
  /// Writes state.json last and gives the folder its final name. A checkpoint that has this name is
  /// set aside and its new path returned; otherwise the result is empty.
  std::filesystem::path publish(const CheckpointManifest& manifest);

 private:
  std::filesystem::path path_, temporary_;
};

}  // namespace sluice
