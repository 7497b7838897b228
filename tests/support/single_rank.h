#pragma once

#include "apps/train/ranks.h"
#include "parallel/data_parallel.h"

namespace sluice::test {

/// What a Trainer needs of a run of one process.
struct SingleRank {
  SingleRank(ParameterSpace& space, Optimizer& optimizer)
      : partition(space.layout(), {}),
        parallel(space, optimizer, partition, *ranks.data, *ranks.control, *ranks.control, {}) {}

  Ranks ranks = single_rank();
  Partition partition;
  DataParallel parallel;
};

}  // namespace sluice::test
