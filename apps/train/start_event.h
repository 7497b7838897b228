#pragma once

#include <nlohmann/json_fwd.hpp>

#include "apps/train/start_table.h"

namespace sluice {

/// What must be the same for a checkpoint to be continued.
nlohmann::json run_identity(const TrainOptions& options, const RunSetup& setup);

/// What a run is, for the log: the model as an object, every option of `decided` by name, the
/// ranks, what was planned and measured, and what run_identity says.
nlohmann::ordered_json start_event(const TrainOptions& decided, const RunSetup& setup,
                                   const StartFacts& facts);

}  // namespace sluice
