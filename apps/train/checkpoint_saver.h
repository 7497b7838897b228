#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "apps/train/checkpoint.h"

namespace sluice {

/// What became of a save.
struct SaveResult {
  std::int64_t step = 0;
  std::filesystem::path path{};
  std::string error{};    ///< "": the checkpoint is there
  std::string warning{};  ///< the same in a sentence, or why older checkpoints are there still
  std::uint64_t bytes = 0;
  double waited_ms = 0;  ///< that training stood still
  double total_ms = 0;
};

/// What the next save of a process follows; see lineage.h.
struct SaveNumbers {
  Lineage lineage{};      ///< of what the run went on from, or saved last
  std::int64_t last = 0;  ///< the highest number in the folder
};

/// Saves the checkpoints of a run, and removes old ones behind each. The first rank writes; all
/// ranks call the same functions together. A save that fails leaves everything as it was.
class CheckpointSaver {
 public:
  /// Keeps the newest `keep` in `folder`. With memory for a copy training goes on as soon as that
  /// is made, which another thread writes; one is under way at a time.
  CheckpointSaver(std::filesystem::path folder, std::int64_t keep, SaveNumbers numbers,
                  CheckpointCopy copy = {});
  /// Waits for what is under way.
  ~CheckpointSaver() = default;

  /// Whether it is saved, or on its way.
  bool save(std::int64_t step, const nlohmann::json& run, const CheckpointState& state);
  /// Waits for what is under way.
  void settle();
  /// Of saves that have ended, each told once; of the first rank.
  std::vector<SaveResult> results();
  /// Throws Error on all ranks if the last save has failed; none may be under way.
  void require_saved(Communicator& control) const;

 private:
  void end(SaveResult result);
  void save_here(const CheckpointState& state, const CheckpointManifest& manifest);
  void save_copy(const CheckpointState& state, const CheckpointManifest& manifest);

  std::filesystem::path folder_;
  std::int64_t keep_;
  SaveNumbers numbers_;
  Lineage lineage_;  ///< of the save that was begun last
  CheckpointCopy copy_;
  std::future<SaveResult> under_way_;
  std::vector<SaveResult> ended_;
  std::string last_error_;
};

/// One save at once, which descends from the newest of the folder; throws Error on all ranks if it
/// fails. Returns the checkpoint's path.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder, std::int64_t step,
                                      const nlohmann::json& run, const CheckpointState& state,
                                      std::int64_t keep);

}  // namespace sluice
