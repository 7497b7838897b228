#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/checkpoint/checkpoint_history.h"
#include "apps/checkpoint/checkpoint_manifest.h"
#include "apps/checkpoint/checkpoint_saver.h"
#include "apps/config/train_config.h"
#include "apps/output/run_folder.h"
#include "apps/train_gpt2/job.h"
#include "optim/schedule.h"

namespace sluice {

/// The checkpoint that a run resumes from, if any, and what that means for the folder that the run
/// writes.
struct Resumption {
  std::filesystem::path checkpoint{};  ///< empty: none to resume from
  CheckpointManifest manifest{};
  std::int64_t skip_batches = 0;        ///< batches to skip besides those the checkpoint records
  std::vector<std::string> warnings{};  ///< printed already, but not logged: there is no log yet

  // These are set on rank 0 only.
  SaveNumbers saves{};                            ///< save numbers that the next save continues
  std::int64_t keep = 0;                          ///< number of checkpoints to keep
  std::vector<std::filesystem::path> given_up{};  ///< checkpoints that the run does not continue
  std::optional<ResumePoint> point{};             ///< resume point to be recorded

  void warn(const std::string& warning);
};

/// Returns on rank 0 the folder of the run: --output, else that of the run that --resume names,
/// else a new one. Returns null on other ranks. All ranks call it together.
std::unique_ptr<RunFolder> take_folder(const TrainConfig& options, Job& job);

/// Returns rank 0's folder on all ranks, which call it together. Throws Error (usage) if a run that
/// saves could not be resumed, since a rank does not see that folder.
std::filesystem::path path_for_all(const RunFolder* folder, const TrainConfig& options, Job& job);

/// Finds the checkpoint to resume from. If --resume names a checkpoint, it is that one. Otherwise
/// it is looked for in the run that --resume names, or in `output`: the newest complete checkpoint,
/// or the one that an earlier --resume has named if nothing was saved since. All ranks read the
/// whole checkpoint and agree on it. Throws Error: usage if --resume names nothing to resume from,
/// runtime if the checkpoints are damaged. Rank 0 holds the lock of `output`.
Resumption find_checkpoint(const TrainConfig& options, const std::filesystem::path& output,
                           Job& job);

/// Warns if the next update's learning rate is more than twice what it was to be when the
/// checkpoint was saved, or less than half of it.
void warn_of_rate(Resumption& found, const RateSchedule& schedule);

/// Records what the run resumes from, sets aside the checkpoints that the run does not continue,
/// and removes leftovers of a crash. Adds its messages to `found.warnings`. Call it on rank 0 when
/// nothing can refuse the run any more.
void take_up(Resumption& found, const std::filesystem::path& output);

}  // namespace sluice
