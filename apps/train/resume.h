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

/// What --resume asks for: the checkpoint it names, or the newest of `output` that is whole.
/// Removes what a crash has left there. All ranks read all of it and agree. Throws Error (runtime)
/// where what there is is damaged.
Resumption find_checkpoint(const TrainOptions& options, const std::filesystem::path& output,
                           Job& job);

}  // namespace sluice
