#pragma once

#include <string>

#include "apps/train/options.h"

namespace sluice {

/// A whole training run: start-up table, steps, validation, samples, checkpoints, export, final
/// table. `resolved` is the configuration to keep beside the run. Prints to stdout.
void run_training(const TrainOptions& options, const std::string& resolved);

}  // namespace sluice
