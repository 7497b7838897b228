#pragma once

#include <string>

#include "apps/config/train_config.h"
#include "apps/train_gpt2/job.h"

namespace sluice {

/// Runs a whole training: start-up table, steps, validation, samples, checkpoints, export, final
/// table. `resolved` is the text of the options, which must agree between ranks. Prints to stdout.
/// All ranks of the job call it; rank 0 prints and writes.
void run_training(TrainConfig options, const std::string& resolved, Job& job);

}  // namespace sluice
