#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/train/checkpoint_manifest.h"

namespace sluice {

// A checkpoint is a folder step-NNNNNNNN among others. Under such a name it is whole or absent: it
// is written, and removed, as step-NNNNNNNN.tmp.<pid>.

/// Where the checkpoint of a step is, or would be.
std::filesystem::path checkpoint_path(const std::filesystem::path& folder, std::int64_t step);
/// The checkpoints of a folder, oldest first. Left-over temporaries are not among them.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);
/// Removes temporaries that a crash has left.
void remove_temporaries(const std::filesystem::path& folder);
/// Removes all but `saved` and the newest keep - 1 others.
void remove_old_checkpoints(const std::filesystem::path& saved, std::int64_t keep);

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
  /// Writes state.json last and gives the folder its name, in the place of one that has it.
  void publish(const CheckpointManifest& manifest);

 private:
  std::filesystem::path path_, temporary_;
};

}  // namespace sluice
