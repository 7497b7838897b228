#pragma once

#include <functional>

#include "tests/support/training.h"

// Training runs of several ranks, as threads, among which the model may be divided.

namespace sluice::test {

using RankOfMesh = std::function<void(const Ranks&, const DevicePtr&)>;
using MonitorOf = std::function<std::shared_ptr<Monitor>(int rank)>;
struct MeshOptions {
  double timeout = 60;  ///< seconds that ranks wait for each other
  MonitorOf monitor{};  ///< of all communicators of a rank; may be none
};
/// Runs `body` as every rank of the task, with the communicators and the device for it.
void on_mesh(const TrainingTask& task, const MemoryChoice& choice, DeviceKind kind,
             const RankOfMesh& body, const MeshOptions& options = {});

/// Weights and state of what a rank has, by the names of the parameters.
RunBits bits_by_name(TrainingRun& run);

/// What all ranks have to show together. Copies of a parameter must be equal, and all steps.
RunBits train_pipelined(const TrainingTask& task, const MemoryChoice& choice, std::int64_t steps,
                        DeviceKind kind = DeviceKind::cpu);

/// Where memory of a rank on the CPU is not as planned, in training and in validation.
std::vector<std::string> unplanned_memory(const TrainingTask& task, const MemoryChoice& choice);

}  // namespace sluice::test
