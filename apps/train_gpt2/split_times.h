#pragma once

#include "apps/config/train_config.h"
#include "apps/train/setup.h"
#include "apps/train_gpt2/job.h"

namespace sluice {

/// Calls resolve(), and takes the checksum of a model with adapters. If --pipeline-split is `time`,
/// also measures how long a block, the embedding and the head take on this machine, in separate
/// memory, and replaces `time` by the number of blocks per stage. All ranks use rank 0's
/// measurements.
RunSetup resolve_with_split(TrainConfig& options, Job& job);

}  // namespace sluice
