#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/checkpoint_manifest.h"
#include "apps/train/job.h"
#include "apps/train/options.h"

namespace sluice {

/// A checkpoint that is whole, and what it says of itself.
struct Resumption {
  std::filesystem::path checkpoint{};  ///< empty: there is none to go on from
  CheckpointManifest manifest{};
  std::vector<std::string> warnings{};  ///< said already, but not logged: there is no log yet

  void warn(const std::string& warning);
};

/// The folder of the run that --resume names, by its own or by that of its checkpoints; empty where
/// it says something else.
std::filesystem::path resumed_run(const TrainOptions& options);

/// Where the run writes: --output, else the run that --resume names, else runs/<time>.
std::filesystem::path output_of(const TrainOptions& options);

/// What --resume asks for: the checkpoint it names, or the newest that is whole of `output` or of
/// the run it names. Removes what a crash has left in `output`. All ranks read all of it and agree.
/// Throws Error: usage where --resume names nothing to go on from, runtime where what there is is
/// damaged.
Resumption find_checkpoint(const TrainOptions& options, const std::filesystem::path& output,
                           Job& job);

}  // namespace sluice
