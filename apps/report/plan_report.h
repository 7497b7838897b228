#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/plan/planner.h"
#include "apps/train/options.h"

namespace sluice {

/// Plans for the machine that the options name (--device-profile, --probe, else this one) and
/// prints the plan: a table, or with --json an object. Throws Error (usage) if nothing fits.
void print_plan(const TrainOptions& options);

/// The flags for division of the work that were given, with any value.
struct GivenAxes {
  bool pp = false, tp = false, zero = false;
};

/// Prints the fastest ways to divide the work among several GPUs (--gpus). Throws Error (usage)
/// also if no way fits; the message names the nearest.
void print_cluster_plan(const TrainOptions& options, const GivenAxes& given);

/// Formats memory by category, the choice as flags, the predicted step, and alternatives that fit.
std::string plan_table(const TrainOptions& options, const RunSetup& setup,
                       const DeviceProfile& profile, const Planned& planned);
nlohmann::ordered_json plan_json(const TrainOptions& options, const RunSetup& setup,
                                 const DeviceProfile& profile, const Planned& planned);

}  // namespace sluice
