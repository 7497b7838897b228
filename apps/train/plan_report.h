#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/train/options.h"
#include "apps/train/planner.h"

namespace sluice {

/// Plans for the machine that the options name (--device-profile, --probe, else this one) and
/// prints it: a table, or with --json an object. Throws Error (usage) when nothing fits.
void print_plan(const TrainOptions& options);

/// Which of the flags that divide the work were given, with whatever value.
struct GivenAxes {
  bool pp = false, tp = false, zero = false;
};

/// The same for so many GPUs (--gpus): the fastest ways to divide the work between them. Throws
/// Error (usage), beside the usual, where no way fits: with the nearest.
void print_cluster_plan(const TrainOptions& options, const GivenAxes& given);

/// Memory by category, the choice as flags, the predicted step and its parts, what else would fit.
std::string plan_table(const TrainOptions& options, const RunSetup& setup,
                       const DeviceProfile& profile, const Planned& planned);
nlohmann::ordered_json plan_json(const TrainOptions& options, const RunSetup& setup,
                                 const DeviceProfile& profile, const Planned& planned);

}  // namespace sluice
