#pragma once

#include <cstdint>
#include <vector>

#include "apps/plan/cost/cost_model.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/simulator.h"

namespace sluice {

/// How a pipeline divides a model into stages, and the stages among ranks.
struct StagePlaces {
  std::vector<DecoderPart> parts{};  ///< one part per stage
  std::vector<int> rank_of_stage{};  ///< place of each stage in the pipeline; a place is `tp` ranks
  Stash stash = Stash::graph;
};

struct StageTime {
  StageCosts costs{};
  double tensor = 0;  ///< part of forward and backward: waits for other shards
};

/// Predicts each stage's seconds for one micro-batch. Uses the links between the first replica's
/// ranks.
std::vector<StageTime> stage_times(const DecoderConfig& config, const StagePlaces& places,
                                   const MemoryChoice& choice, const StepWork& work,
                                   const DeviceProfile& profile, const Interconnect& interconnect);

/// Predicts the seconds from the first forward to the last backward of a schedule. With many
/// micro-batches it simulates two shorter runs and extrapolates: each further group of `ranks`
/// micro-batches takes equally long.
double makespan(ScheduleName schedule, int ranks, int virtual_stages, std::int64_t micro_batches,
                const std::vector<StageCosts>& costs);

/// Returns how often a step reduces the gradients of a block under ZeRO-2, if stages have `blocks`
/// each and a rank has several blocks (see GradientReducer): once for each micro-batch, but
///   zero_bubble_h1  twice, for LayerNorm's gradients and for those of matrices
///   interleaved     once for `ranks` micro-batches, which a stage of one block passes in turn
std::int64_t reductions_of(ScheduleName schedule, int ranks, std::int64_t blocks,
                           std::int64_t micro_batches);
/// The same for the actions of a rank of any schedule, as a mean over its blocks, rounded up.
std::int64_t reductions_of(const std::vector<Action>& actions,
                           const std::vector<DecoderPart>& parts);

}  // namespace sluice
