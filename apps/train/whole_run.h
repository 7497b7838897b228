#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/train/options.h"

namespace sluice {

/// What a plan comes to for whoever wants to train by it.
struct WholeRun {
  std::string command{};  ///< as a shell takes it
  std::int64_t steps = 0;
  double step_seconds = 0;  ///< predicted; not finite where nobody can tell
  std::string rates{};      ///< what the prediction rests on
};

/// `flags` are those that the plan chose. Ranks of one node are started by scripts/launch.
std::string training_command(const TrainOptions& options, std::int64_t ranks,
                             const std::string& flags);

/// Two rows of a plan's table, and the same as fields of its object.
std::string whole_run_text(const WholeRun& run);
void add_whole_run(nlohmann::ordered_json& json, const WholeRun& run);

}  // namespace sluice
