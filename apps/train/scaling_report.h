#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/train/planner.h"
#include "apps/train/scaling.h"

namespace sluice {

/// Refuses (usage) a batch that the ranks cannot share evenly, more ranks than are predicted, and
/// --scaling of pipelines.
void require_ranks(const TrainOptions& options);

/// What `chosen` comes to on many ranks: links from the options, else the profile's.
ScalingTask scaling_task(const TrainOptions& options, const RunSetup& setup,
                         const DeviceProfile& profile, const Plan& chosen);

/// What several ranks (--dp) send in a step, and with --scaling the table from one rank up; empty
/// where neither was asked for.
std::string scaling_text(const TrainOptions& options, const ScalingTask& task);
/// The same under "communication" and "scaling".
void add_scaling(nlohmann::ordered_json& json, const TrainOptions& options,
                 const ScalingTask& task);

}  // namespace sluice
