#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "apps/checkpoint/checkpoint.h"

namespace sluice {

/// The outcome of a save.
struct SaveResult {
  std::int64_t step = 0;
  std::filesystem::path path{};
  std::string error{};    ///< "": the checkpoint was saved
  std::string warning{};  ///< the error as a sentence, or a note about older checkpoints
  std::uint64_t bytes = 0;
  std::int64_t writers = 0;  ///< ranks that wrote
  double waited_ms = 0;      ///< time for which training stood still
  double total_ms = 0;
};

/// The numbers from which a process's next save gets its own; see lineage.h.
struct SaveNumbers {
  Lineage lineage{};      ///< lineage of the checkpoint resumed from or saved last
  std::int64_t last = 0;  ///< highest save number in the folder
};

/// Saves the checkpoints of a run and removes old ones after each. All ranks call the same
/// functions together. Each writes its part of the files (collective_write.h), or rank 0 writes a
/// copy, and rank 0 publishes. A save that fails on any rank leaves everything as it was.
class CheckpointSaver {
 public:
  /// Keeps the newest `keep` in `folder`. If a copy is wanted, training resumes once the state is
  /// in rank 0's copy, and another thread writes it; one save is in flight at a time.
  CheckpointSaver(std::filesystem::path folder, std::int64_t keep, SaveNumbers numbers,
                  CheckpointCopy copy = {});
  /// Waits for the save in flight.
  ~CheckpointSaver() = default;

  /// Returns true if the checkpoint is saved or its save is in flight.
  bool save(std::int64_t step, const nlohmann::json& run, const CheckpointState& state);
  /// Waits for the save in flight. All ranks of `control` call it together.
  void synchronize(Communicator& control);
  /// Returns the results of saves that ended since the last call; on rank 0 only.
  std::vector<SaveResult> results();
  /// Throws Error on all ranks if the last save has failed. None may be in flight.
  void require_saved(Communicator& control) const;

 private:
  void end(SaveResult result);
  void end_save_in_flight();
  void save_here(CheckpointFiles& files, Communicator& ranks, CheckpointManifest manifest);
  void save_copy(CheckpointFiles& files, Communicator& ranks, const CheckpointManifest& manifest);

  std::filesystem::path folder_;
  std::int64_t keep_;
  SaveNumbers numbers_;
  Lineage lineage_;  ///< lineage of the save begun last
  CheckpointCopy copy_;
  std::future<SaveResult> under_way_;
  std::vector<SaveResult> ended_;
  std::string last_error_;
};

/// Saves one checkpoint, a descendant of the folder's newest, and waits for it. Throws Error on all
/// ranks if that fails. Returns the checkpoint's path.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder, std::int64_t step,
                                      const nlohmann::json& run, const CheckpointState& state,
                                      std::int64_t keep);

}  // namespace sluice
