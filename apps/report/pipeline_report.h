#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/plan/cost/scaling.h"
#include "apps/plan/planner.h"
#include "parallel/pipeline/simulator.h"

namespace sluice {

/// Report on a planned pipeline: validated schedule, counted memory and bytes, predicted times.
struct PipelineReport {
  struct Stage {
    int rank = 0;  ///< the first of the ranks that divide its matrices
    GPT2Part part;
    /// Parameters on all its ranks. The tied table counts for the first stage and for the last.
    std::int64_t parameters = 0;
    StageCosts costs;  ///< seconds, by the cost model
  };
  struct Rank {
    std::vector<int> stages{};
    std::int64_t parameters = 0;  ///< counts the tied table once
    int live = 0, received = 0;   ///< see ScheduleFacts
    MemoryPlan memory{};
    std::size_t excess = 0;           ///< bytes above the budget
    std::uint64_t bytes_reduced = 0;  ///< sent to other replicas per step
    std::uint64_t bytes_sent = 0;     ///< sent to neighbouring stages per step
  };

  std::string name;  ///< name of the schedule
  Schedule schedule;
  std::vector<Stage> stages{};
  std::vector<Rank> ranks{};  ///< of the first replica, stage by stage
  int shards = 1;             ///< ranks that divide each stage's matrices
  std::size_t boundary = 0;   ///< bytes of one message
  /// Bytes that each end of the pipeline sends to the other to sum the tied table's gradient. If
  /// several ranks divide the table, this counts shard 0.
  std::uint64_t table_bytes = 0;
  Simulation simulation{};  ///< simulated from the stages' costs
  BubbleSplit bubble{};
};

/// Requires options with a pipeline. Links are those of `interconnect`, ranks fill node by node.
PipelineReport report_pipeline(const TrainOptions& options, const RunSetup& setup,
                               const DeviceProfile& profile, const Interconnect& interconnect,
                               const MemoryChoice& choice);

std::string pipeline_text(const PipelineReport& report);
nlohmann::ordered_json pipeline_json(const PipelineReport& report);

/// Writes --schedule-svg and --schedule-csv. Throws Error (usage) for them if `report` is null.
void write_schedule(const TrainOptions& options, const PipelineReport* report);

}  // namespace sluice
