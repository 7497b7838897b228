#pragma once

#include <functional>

#include "tests/support/training/training.h"

// Training runs of several ranks, as threads, which may divide the model.

namespace sluice::test {

using RankOfMesh = std::function<void(const Ranks&, const DevicePtr&)>;
using MonitorOf = std::function<std::shared_ptr<Monitor>(int rank)>;
struct MeshOptions {
  double timeout = 60;  ///< seconds that ranks wait for each other
  MonitorOf monitor{};  ///< for all communicators of a rank; may be empty
};
/// Runs `body` as every rank of the task, with the rank's communicators and device.
void on_mesh(const TrainingTask& task, const MemoryChoice& choice, DeviceKind kind,
             const RankOfMesh& body, const MeshOptions& options = {});

/// Returns a rank's weights and state, by parameter name.
RunBits bits_by_name(TrainingRun& run);

/// Returns the combined result of all ranks. Copies of a parameter must be equal, and all steps.
RunBits train_pipelined(const TrainingTask& task, const MemoryChoice& choice, std::int64_t steps,
                        DeviceKind kind = DeviceKind::cpu);

/// Returns where a CPU rank's memory differs from the plan, in training and in validation.
std::vector<std::string> unplanned_memory(const TrainingTask& task, const MemoryChoice& choice);

}  // namespace sluice::test
