#pragma once

#include <optional>
#include <string>

#include "apps/train/planner.h"
#include "apps/train/recorded_choice.h"

namespace sluice {

/// The record of the checkpoint that a run with these options would go on from, by its manifest
/// alone; none where there is none that can be read.
std::optional<RecordedChoice> expected_record(const TrainOptions& options);

struct ContinuedPlan {
  Planned planned;
  std::string warning{};  ///< why not all of the record could be kept; "" where it was
};

/// plan_run for a run that goes on with `record`: where nothing fits with all of it, without its
/// micro-batch, and where nothing fits then, without it. `setup` becomes that of what was planned.
ContinuedPlan plan_continued(const TrainOptions& options, RunSetup& setup,
                             const DeviceProfile& profile,
                             const std::optional<RecordedChoice>& record);

}  // namespace sluice
