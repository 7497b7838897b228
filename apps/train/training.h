#pragma once

#include <memory>

#include "apps/train/checkpoint.h"
#include "apps/train/memory_choice.h"
#include "apps/train/ranks.h"
#include "apps/train/setup.h"
#include "apps/train/trainer.h"

namespace sluice {

/// The most bytes that ranks exchange in one operation on the device's memory.
std::size_t largest_exchange(const TrainOptions& options, const RunSetup& setup,
                             const MemoryChoice& choice, int ranks);

/// What computes and holds memory in a training run, in the order in which memory is taken: the
/// same code on the device of a run and, for its plan, on `meta`.
struct Training {
  /// `host` is where state rests that the choice does not keep on the device; may be none if the
  /// choice keeps all of it there.
  Training(const TrainOptions& options, const RunSetup& setup, const MemoryChoice& choice,
           const DevicePtr& device, const DevicePtr& host, Ranks among = single_rank());

  CheckpointState checkpoint() { return {space, *optimizer, trainer.scaler(), parallel}; }

  Ranks ranks;
  GPT2 model;
  Partition partition;
  ParameterSpace space;
  std::unique_ptr<Optimizer> optimizer;
  DataParallel parallel;
  Trainer trainer;
};

}  // namespace sluice
