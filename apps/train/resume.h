#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/checkpoint_history.h"
#include "apps/train/checkpoint_manifest.h"
#include "apps/train/checkpoint_saver.h"
#include "apps/train/job.h"
#include "apps/train/options.h"
#include "apps/train/run_folder.h"

namespace sluice {

/// A checkpoint that is whole, what it says of itself, and what going on from it means for the
/// folder that the run writes.
struct Resumption {
  std::filesystem::path checkpoint{};  ///< empty: there is none to go on from
  CheckpointManifest manifest{};
  std::int64_t skip_batches = 0;        ///< to leave out, beyond what the checkpoint has
  std::vector<std::string> warnings{};  ///< said already, but not logged: there is no log yet

  // Of the first rank.
  SaveNumbers saves{};                            ///< what the next save follows
  std::int64_t keep = 0;                          ///< checkpoints
  std::vector<std::filesystem::path> given_up{};  ///< of the folder: not its ancestors
  std::optional<ResumePoint> point{};             ///< to be recorded

  void warn(const std::string& warning);
};

/// The folder of the run that --resume names, by its own or by that of its checkpoints; empty where
/// it says something else.
std::filesystem::path resumed_run(const TrainOptions& options);

/// On the first rank, the folder of the run: --output, else that of the run which --resume names,
/// else a new one.
std::unique_ptr<RunFolder> take_folder(const TrainOptions& options, const Job& job);

/// What --resume asks for: the checkpoint it names; else, of `output` or of the run it names, what
/// an earlier --resume had named before anything was saved, or the newest that is whole. All ranks
/// read all of it and agree. Throws Error: usage where --resume names nothing to go on from,
/// runtime where what there is is damaged. The first rank holds the lock of `output`.
Resumption find_checkpoint(const TrainOptions& options, const std::filesystem::path& output,
                           Job& job);

/// Once nothing can refuse the run any more, on the first rank: records what it goes on from, sets
/// aside the checkpoints that it gives up, and removes what a crash has left. What it has said is
/// in `found.warnings` too.
void take_up(Resumption& found, const std::filesystem::path& output);

}  // namespace sluice
