#pragma once

#include <cstdint>
#include <vector>

#include "apps/config/train_config.h"
#include "apps/train/memory_choice.h"
#include "apps/train/setup.h"
#include "kernels/base/dtype.h"
#include "optim/space/state_layout.h"

namespace sluice {

// These functions list the planner's candidates: the value that a flag fixes, or all values.

struct StatePrecision {
  StateLayout layout;
  bool narrow_gradients;
};

/// Lists the precisions of optimizer state to try, the most exact first; planners go down the list
/// only as far as they must. Throws Error (usage) for a layout that the update rule does not
/// support.
std::vector<StatePrecision> precision_candidates(const TrainConfig& options, DType working);

/// Returns micro-batch sizes in sequences, largest first.
std::vector<std::int64_t> micro_batches(const TrainConfig& options, const RunSetup& setup,
                                        bool gpu);

/// An entry of the planner's list: what blocks recompute, and the tokens of a micro-batch.
struct PlanEntry {
  Recompute recompute;
  std::int64_t least, most;  ///< tokens of a micro-batch
  bool few = false;          ///< only as many blocks as must recompute this, the others gelu_ln
};

/// Returns the entries to try: all of the list, or those that differ if `recompute_given`.
/// `inputs_on_host`: block_on_host is allowed.
std::vector<PlanEntry> plan_entries(bool gpu, bool inputs_on_host, bool recompute_given);

/// Returns the stagings to try, the default first. Returns only the default unless `streams`.
std::vector<Staging> stagings(const TrainConfig& options, bool streams);

}  // namespace sluice
