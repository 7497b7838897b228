#pragma once

#include "apps/config/rules.h"
#include "apps/train/setup.h"

namespace sluice {

/// Returns the facts of Known::run but for the data's name, which is read from its files. `setup`
/// may have no data.
RunFacts run_facts(const TrainConfig& options, const RunSetup& setup);

/// Throws Error (usage) for options that do not go with this model and this data, and for a
/// schedule that contradicts itself.
void require_run(const TrainConfig& options, const RunSetup& setup);

}  // namespace sluice
