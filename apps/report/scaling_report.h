#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/plan/cost/scaling.h"
#include "apps/plan/planner.h"

namespace sluice {

/// Throws Error (usage) for a batch that the ranks cannot share evenly, for more ranks than can be
/// predicted, and for --scaling with a pipeline or --tp.
void require_ranks(const TrainOptions& options);

/// Describes `chosen` for many ranks. Links come from the options, else from the profile.
ScalingTask scaling_task(const TrainOptions& options, const RunSetup& setup,
                         const DeviceProfile& profile, const Plan& chosen);

/// Formats what several ranks (--dp) send in a step and, with --scaling, the table from one rank
/// up. Returns "" if neither was requested.
std::string scaling_text(const TrainOptions& options, const ScalingTask& task);
/// Adds the same to `json` under "communication" and "scaling".
void add_scaling(nlohmann::ordered_json& json, const TrainOptions& options,
                 const ScalingTask& task);

}  // namespace sluice
