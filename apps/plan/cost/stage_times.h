#pragma once

#include <string>
#include <vector>

#include "apps/plan/cost/cost_model.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/simulator.h"

namespace sluice {

/// Division of a model among the ranks of a pipeline.
struct StagePlaces {
  std::vector<GPT2Part> parts{};     ///< one part per stage
  std::vector<int> rank_of_stage{};  ///< place of each stage in the pipeline; a place is `tp` ranks
  Stash stash = Stash::graph;
};

struct StageTime {
  StageCosts costs{};
  double tensor = 0;  ///< part of forward and backward: waits for other shards
};

/// Predicts the times of one micro-batch. Links are those between the first replica's ranks.
std::vector<StageTime> stage_times(const GPT2Config& config, const StagePlaces& places,
                                   const MemoryChoice& choice, const StepWork& work,
                                   const DeviceProfile& profile, const Interconnect& interconnect);

/// Predicts the seconds from the first forward to the last backward of a schedule. Of many
/// micro-batches only the first and the last few are simulated; each group of `ranks` micro-batches
/// between them takes as long as the one before.
double makespan(ScheduleName schedule, int ranks, int virtual_stages, std::int64_t micro_batches,
                const std::vector<StageCosts>& costs);

}  // namespace sluice
