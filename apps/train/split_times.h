#pragma once

#include "apps/train/job.h"
#include "apps/train/options.h"
#include "apps/train/setup.h"

namespace sluice {

/// resolve(), and for --pipeline-split time what a block, the embedding and the head cost on this
/// machine, measured in memory of its own: the blocks of each stage take the place of the word. All
/// ranks take what the first has measured.
RunSetup resolve_with_split(TrainOptions& options, Job& job);

}  // namespace sluice
