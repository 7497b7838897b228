#pragma once

#include <string>
#include <vector>

#include "apps/train/cost_model.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/simulator.h"

namespace sluice {

/// How a model is divided between the ranks of a pipeline.
struct StagePlaces {
  std::vector<GPT2Part> parts{};     ///< by stage
  std::vector<int> rank_of_stage{};  ///< place in the pipeline, each of which is `tp` ranks
  Stash stash = Stash::graph;
};

struct StageTime {
  StageCosts costs{};
  double tensor = 0;  ///< of forward and backward, waiting for other shards
};

/// Of one micro-batch, by the cost model; links are those of the first replica's ranks.
std::vector<StageTime> stage_times(const GPT2Config& config, const StagePlaces& places,
                                   const MemoryChoice& choice, const StepWork& work,
                                   const DeviceProfile& profile, const Interconnect& interconnect);

/// Seconds from the first forward to the last backward of a named schedule (1f1b, interleaved,
/// gpipe, layer-split). Of many micro-batches the first and the last few are simulated; between
/// them every group of as many as there are ranks takes as long as the one before.
double makespan(const std::string& schedule, int ranks, int virtual_stages,
                std::int64_t micro_batches, const std::vector<StageCosts>& costs);

}  // namespace sluice
