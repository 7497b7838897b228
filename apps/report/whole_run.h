#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/train/options.h"

namespace sluice {

/// Command and predicted duration of a plan, for a user who wants to train by it.
struct WholeRun {
  std::string command{};  ///< as typed into a shell
  std::int64_t steps = 0;
  double step_seconds = 0;  ///< predicted; not finite if unknown
  std::string rates{};      ///< origin of the rates behind the prediction
};

/// Returns the command that trains by the plan's `flags`. scripts/launch starts ranks of one node.
std::string training_command(const TrainOptions& options, std::int64_t ranks,
                             const std::string& flags);

/// Formats two rows of a plan's table. add_whole_run() adds the same as fields of its object.
std::string whole_run_text(const WholeRun& run);
void add_whole_run(nlohmann::ordered_json& json, const WholeRun& run);

}  // namespace sluice
