#pragma once

#include "apps/train/ranks.h"
#include "parallel/data_parallel/data_parallel.h"

namespace sluice::test {

/// The communicators and the data parallelism that a Trainer needs in a run of one process.
struct SingleRank {
  SingleRank(ParameterSpace& space, Optimizer& optimizer)
      : bucket_plan(space.layout(), {}),
        parallel(space, optimizer, bucket_plan, *ranks.dp_device, *ranks.control, *ranks.control,
                 {}) {}

  Ranks ranks = single_rank();
  BucketPlan bucket_plan;
  DataParallel parallel;
};

}  // namespace sluice::test
