#pragma once

#include "apps/plan/cost/scaling.h"
#include "apps/plan/planner.h"
#include "apps/report/report.h"

namespace sluice {

/// Throws Error (usage) for a batch that the ranks cannot share evenly, for more ranks than can be
/// predicted, and for --scaling with a pipeline or --tp.
void require_ranks(const TrainConfig& options);

/// Describes `chosen` for many ranks. Links come from the options, else from the profile.
ScalingTask scaling_task(const TrainConfig& options, const RunSetup& setup,
                         const DeviceProfile& profile, const Plan& chosen);

/// Returns what several ranks (--dp) send in a step and, with --scaling, the table from one rank
/// up. Empty if neither was requested.
Report scaling_report(const TrainConfig& options, const ScalingTask& task);

}  // namespace sluice
