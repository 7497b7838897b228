#pragma once

#include <nlohmann/json_fwd.hpp>

#include "apps/report/start_table.h"

namespace sluice {

/// Returns what must be equal between a run and a checkpoint that it continues.
nlohmann::json run_identity(const TrainConfig& options, const RunSetup& setup);

/// Describes a run for the log: the model as an object, every option of `decided` by name, the
/// ranks, the plan, the measurements, and the fields of run_identity.
nlohmann::ordered_json start_event(const TrainConfig& decided, const RunSetup& setup,
                                   const StartFacts& facts);

}  // namespace sluice
