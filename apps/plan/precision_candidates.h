#pragma once

#include <vector>

#include "apps/train/options.h"
#include "kernels/base/dtype.h"
#include "optim/space/state_layout.h"

namespace sluice {

struct StatePrecision {
  StateLayout layout;
  bool narrow_gradients;
};

/// Lists the precisions of optimizer state; planners go down the list only as far as they must.
/// Throws Error (usage) for a layout that the update rule does not support.
std::vector<StatePrecision> precision_candidates(const TrainOptions& options, DType working);

}  // namespace sluice
