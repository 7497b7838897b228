#pragma once

#include <vector>

#include "apps/plan/cost/scaling.h"
#include "apps/plan/planner.h"
#include "apps/report/report.h"
#include "parallel/pipeline/simulator.h"

namespace sluice {

/// Report on a planned pipeline: validated schedule, counted memory and bytes, predicted times.
struct PipelineReport {
  Report report{.text = "\n"};
  std::vector<StageCosts> costs{};  ///< seconds of each stage, by the cost model
  /// From the first forward to the last backward, simulated, and waits for weights that stream.
  double seconds = 0;
};

/// Requires options with a pipeline. Links are those of `interconnect`, ranks fill node by node.
PipelineReport report_pipeline(const TrainConfig& options, const RunSetup& setup,
                               const DeviceProfile& profile, const Interconnect& interconnect,
                               const Plan& chosen);

/// Declares --schedule-svg and --schedule-csv.
void declare_schedule_files(CommandLine& line, TrainConfig& options);

/// Writes --schedule-svg and --schedule-csv; `costs` are those of the stages. Throws Error (usage)
/// for them without a pipeline.
void write_schedule(const TrainConfig& options, const RunSetup& setup,
                    const std::vector<StageCosts>& costs);

}  // namespace sluice
