#pragma once

#include <optional>
#include <string>

#include "apps/checkpoint/checkpoint_manifest.h"
#include "apps/plan/planner.h"

namespace sluice {

/// Reads the memory choice recorded in the checkpoint that a run with these options would resume
/// from. Reads only its manifest. Returns none if there is no checkpoint or no readable record.
std::optional<RecordedChoice> expected_record(const TrainConfig& options);

struct ContinuedPlan {
  Planned planned;
  TrainConfig options;    ///< with the pipeline that the plan needs
  std::string warning{};  ///< why parts of the record were dropped; "" if none were
};

/// Runs plan_run for a run that resumes with `record`. If nothing fits with all of it, retries
/// without its micro-batch, then without the record. Updates `setup` to match the plan.
ContinuedPlan plan_continued(const TrainConfig& options, RunSetup& setup,
                             const DeviceProfile& profile,
                             const std::optional<RecordedChoice>& record);

}  // namespace sluice
