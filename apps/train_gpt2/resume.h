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
#include "apps/output/run_folder.h"
#include "apps/train/options.h"
#include "apps/train_gpt2/job.h"

namespace sluice {

/// A complete checkpoint, its manifest, and what resuming from it means for the folder that the run
/// writes.
struct Resumption {
  std::filesystem::path checkpoint{};  ///< empty: none to resume from
  CheckpointManifest manifest{};
  std::int64_t skip_batches = 0;        ///< to skip, in addition to those in the checkpoint
  std::vector<std::string> warnings{};  ///< printed already, but not logged: there is no log yet

  // These are set on rank 0 only.
  SaveNumbers saves{};                            ///< numbers that the next save follows
  std::int64_t keep = 0;                          ///< number of checkpoints to keep
  std::vector<std::filesystem::path> given_up{};  ///< in the folder, but not its ancestors
  std::optional<ResumePoint> point{};             ///< resume point to be recorded

  void warn(const std::string& warning);
};

/// Returns on rank 0 the folder of the run: --output, else that of the run that --resume names,
/// else a new one. Returns null on other ranks.
std::unique_ptr<RunFolder> take_folder(const TrainOptions& options, const Job& job);

/// Finds what --resume asks for: the checkpoint it names; else, in `output` or the run it names,
/// what an earlier --resume had named before anything was saved, or the newest complete one. All
/// ranks read all of it and agree. Throws Error: usage if --resume names nothing to resume from,
/// runtime if what exists is damaged. Rank 0 holds the lock of `output`.
Resumption find_checkpoint(const TrainOptions& options, const std::filesystem::path& output,
                           Job& job);

/// Call it on rank 0 once nothing can refuse the run any more. It records what the run resumes
/// from, sets aside the checkpoints that the run gives up, and removes leftovers of a crash. Its
/// messages are also in `found.warnings`.
void take_up(Resumption& found, const std::filesystem::path& output);

}  // namespace sluice
