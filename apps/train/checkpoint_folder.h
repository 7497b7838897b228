#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "apps/train/checkpoint_manifest.h"

namespace sluice {

// A checkpoint is a folder step-NNNNNNNN in a run's folder of checkpoints. Under such a name it is
// whole or absent: it is written, and removed, as step-NNNNNNNN.tmp.<pid>. What a run does not go
// on from is moved to the folder set-aside beside it and never removed.

/// Where the checkpoint of a step is, or would be.
std::filesystem::path checkpoint_path(const std::filesystem::path& folder, std::int64_t step);
/// The step in the name of a checkpoint; none: it is not the name of one.
std::optional<std::int64_t> step_in_name(const std::filesystem::path& checkpoint);
/// The folder of checkpoints that a checkpoint, set aside or not, is in.
std::filesystem::path folder_of(const std::filesystem::path& checkpoint);

/// Moves a checkpoint, or whatever has its name, to set-aside/ under a name that is free there.
/// Returns where it is.
std::filesystem::path set_aside(const std::filesystem::path& checkpoint);
/// Removes a checkpoint: its name first, so that it is never there in part.
void remove_checkpoint(const std::filesystem::path& checkpoint);

/// Where a checkpoint belongs that is whole but for its name, since its writer was killed before it
/// could rename it; empty: this is none, or there is one of that name. For who holds the lock of
/// the run: a writer may be about to rename it.
std::filesystem::path place_of_unnamed(const std::filesystem::path& temporary);
/// Gives it its name, and returns that; what is no such temporary stays as it is.
std::filesystem::path named(const std::filesystem::path& checkpoint);
/// Removes the temporaries that writers which were killed have left, and nothing else. Only for who
/// holds the lock of the run.
void remove_temporaries(const std::filesystem::path& folder);

/// A checkpoint that is being written, beside its place.
class NewCheckpoint {
 public:
  NewCheckpoint(const std::filesystem::path& folder, std::int64_t step);
  ~NewCheckpoint();  ///< removes what was not published
  NewCheckpoint(const NewCheckpoint&) = delete;
  NewCheckpoint& operator=(const NewCheckpoint&) = delete;

  /// Where to write a file of it, which must be synced before publish().
  std::filesystem::path file(const std::string& name) const { return temporary_ / name; }
  /// Its place.
  const std::filesystem::path& path() const { return path_; }
  /// Writes state.json last and gives the folder its name. Returns where to it has set aside what
  /// had that name; empty: nothing had.
  std::filesystem::path publish(const CheckpointManifest& manifest);

 private:
  std::filesystem::path path_, temporary_;
};

}  // namespace sluice
