#pragma once

#include "apps/plan/planner.h"
#include "apps/report/report.h"

namespace sluice {

/// Reports on the ranks of a plan that divide the matrices: counted memory and traffic, and
/// predicted times. Requires options with --tp.
Report tensor_report(const TrainConfig& options, const RunSetup& setup,
                     const DeviceProfile& profile, const MemoryChoice& choice);

}  // namespace sluice
