#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/train/planner.h"
#include "apps/train/scaling.h"
#include "parallel/pipeline/simulator.h"

namespace sluice {

/// What a plan says of a pipeline: proved, counted, and, as far as time goes, predicted.
struct PipelineReport {
  struct Stage {
    int rank = 0;  ///< the first of those that divide its matrices
    GPT2Part part;
    /// Of all its ranks; the tied table counts with the first stage and with the last.
    std::int64_t parameters = 0;
    StageCosts costs;  ///< seconds, by the cost model
  };
  struct Rank {
    std::vector<int> stages{};
    std::int64_t parameters = 0;  ///< the tied table once
    int live = 0, received = 0;   ///< see ScheduleFacts
    MemoryPlan memory{};
    std::size_t excess = 0;           ///< bytes above what is allowed
    std::uint64_t bytes_reduced = 0;  ///< sent to other replicas, in a step
    std::uint64_t bytes_sent = 0;     ///< to neighbouring stages, in a step
  };

  std::string name;  ///< of the schedule
  Schedule schedule;
  std::vector<Stage> stages{};
  std::vector<Rank> ranks{};  ///< of the first replica, stage by stage
  int shards = 1;             ///< ranks that divide each stage's matrices
  std::size_t boundary = 0;   ///< bytes of one message
  /// What each end of the pipeline sends the other to add up the tied table's gradient: of several
  /// ranks that divide it, the first.
  std::uint64_t table_bytes = 0;
  Simulation simulation{};  ///< by the stages' costs
  BubbleSplit bubble{};
};

/// The options ask for a pipeline. Links are those of `interconnect`, with ranks node by node.
PipelineReport report_pipeline(const TrainOptions& options, const RunSetup& setup,
                               const DeviceProfile& profile, const Interconnect& interconnect,
                               const MemoryChoice& choice);

std::string pipeline_text(const PipelineReport& report);
nlohmann::ordered_json pipeline_json(const PipelineReport& report);

/// --schedule-svg and --schedule-csv; refused (usage) where there is no pipeline (null).
void write_schedule(const TrainOptions& options, const PipelineReport* report);

}  // namespace sluice
