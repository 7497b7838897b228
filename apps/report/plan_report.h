#pragma once

#include "apps/config/train_config.h"
#include "apps/plan/planner.h"
#include "apps/report/report.h"

namespace sluice {

/// Plans for the machine that the options name (--device-profile, --probe, else this one) and
/// prints the plan: a table, or with --json an object. Throws Error (usage) if nothing fits.
void print_plan(const TrainConfig& options);

/// The flags for division of the work that were given, with any value.
struct GivenAxes {
  bool pp = false, tp = false, zero = false;
};

/// Prints the fastest ways to divide the work among several GPUs (--gpus). Throws Error (usage)
/// also if no way fits; the message names the nearest.
void print_cluster_plan(const TrainConfig& options, const GivenAxes& given);

/// Returns memory by category, the choice as flags, the predicted step, and alternatives that fit.
Report plan_report(const TrainConfig& options, const RunSetup& setup, const DeviceProfile& profile,
                   const Planned& planned);

}  // namespace sluice
