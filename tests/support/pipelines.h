#pragma once

#include <functional>

#include "tests/support/training.h"

// Training runs of several ranks, as threads, among which the model may be divided.

namespace sluice::test {

using RankOfMesh = std::function<void(const Ranks&, const DevicePtr&)>;
/// Runs `body` as every rank of the task, with the communicators and the device for it. They wait
/// no longer than `timeout` seconds for each other.
void on_mesh(const TrainingTask& task, const MemoryChoice& choice, DeviceKind kind,
             const RankOfMesh& body, double timeout = 60);

/// Weights and state of what a rank has, by the names of the parameters.
RunBits bits_by_name(TrainingRun& run);

/// What all ranks have to show together. Copies of a parameter must be equal, and all steps.
RunBits train_pipelined(const TrainingTask& task, const MemoryChoice& choice, std::int64_t steps,
                        DeviceKind kind = DeviceKind::cpu);

}  // namespace sluice::test
