#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/train/training.h"

namespace sluice {

/// What training takes, counted by running the same code on `meta`.
struct MemoryPlan {
  std::size_t peak = 0;        ///< bytes in use on the device at one time
  std::size_t high_water = 0;  ///< the end of the highest block: what the device must back
  MemoryByUse by_use{};        ///< at the peak
  std::size_t host = 0;        ///< bytes that rest in host memory: state, inputs of blocks
  std::size_t pinned = 0;      ///< of them: what the device copies from and to
  /// Of them: optimizer state that visits the device, and that the CPU updates.
  std::size_t visiting_state = 0, cpu_state = 0;
};

/// "weights 2.90 GiB, gradients 5.80 GiB": what there is of each use.
std::string to_text(const MemoryByUse& bytes);

/// Two updates, a validation and the beginning of a sample of one rank of the mesh.
/// `workspace_bytes` is what the device's kernels ask for.
MemoryPlan plan_memory(const TrainOptions& options, const RunSetup& setup,
                       const MemoryChoice& choice, std::size_t workspace_bytes, int rank = 0);

/// Only what is held between updates.
MemoryPlan plan_state(const TrainOptions& options, const RunSetup& setup,
                      const MemoryChoice& choice, std::size_t workspace_bytes, int rank = 0);

}  // namespace sluice
