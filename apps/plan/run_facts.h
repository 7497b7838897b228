#pragma once

#include "apps/config/rules.h"
#include "apps/train/setup.h"

namespace sluice {

/// Returns what rules look at from Known::run on. `setup` may have no data: flags of data are then
/// judged by the files, as far as they are there.
RunFacts run_facts(const TrainConfig& options, const RunSetup& setup);

/// Throws Error (usage) for options that do not go with this model and this data, and for a
/// schedule that contradicts itself.
void require_run(const TrainConfig& options, const RunSetup& setup);

}  // namespace sluice
