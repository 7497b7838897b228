#pragma once

#include "apps/train/config.h"
#include "apps/train/setup.h"

namespace sluice {

/// Throws Error (usage) for a flag in `options.given` that has no effect beside this model and this
/// data, and for a schedule that contradicts itself. `setup` may have no data: flags of data are
/// then judged by the files, as far as they are there.
void require_effects(const TrainConfig& options, const RunSetup& setup);

}  // namespace sluice
