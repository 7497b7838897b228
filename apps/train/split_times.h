#pragma once

#include "apps/train/job.h"
#include "apps/train/options.h"

namespace sluice {

/// For --pipeline-split time: measures what a block, the embedding and the head cost on this
/// machine, in memory of its own, and puts the blocks of each stage in the place of the word. All
/// ranks take what the first has measured.
void split_by_time(TrainOptions& options, Job& job);

}  // namespace sluice
