#pragma once

#include <string>

#include "apps/train/job.h"
#include "apps/train/options.h"

namespace sluice {

/// A whole training run: start-up table, steps, validation, samples, checkpoints, export, final
/// table. `resolved` are the options as they were given, in which the ranks must agree. Prints to
/// stdout. All ranks of the job call it; the first one prints and writes.
void run_training(TrainOptions options, const std::string& resolved, Job& job);

}  // namespace sluice
