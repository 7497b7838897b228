#pragma once

#include <vector>

#include "apps/train/options.h"
#include "kernels/base/dtype.h"
#include "optim/state_layout.h"

namespace sluice {

struct StateForm {
  StateLayout layout;
  bool narrow_gradients;
};

/// How precisely state is kept: planners go down this list only as far as they must. Throws Error
/// (usage) for what the update rule does not know.
std::vector<StateForm> state_forms(const TrainOptions& options, DType working);

}  // namespace sluice
