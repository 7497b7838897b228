#pragma once

#include "apps/train/options.h"
#include "apps/train/setup.h"
#include "apps/train_gpt2/job.h"

namespace sluice {

/// Calls resolve(). If --pipeline-split is `time`, also measures what a block, the embedding and
/// the head cost on this machine, in separate memory, and replaces `time` by the blocks of each
/// stage. All ranks take what rank 0 has measured.
RunSetup resolve_with_split(TrainOptions& options, Job& job);

}  // namespace sluice
