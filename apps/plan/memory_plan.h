#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/train/training.h"

namespace sluice {

/// The memory that a training takes, counted by running the training code on the device `meta`.
struct MemoryPlan {
  std::size_t peak = 0;        ///< bytes in use on the device at one time
  std::size_t high_water = 0;  ///< end of the highest allocation: what the device must provide
  MemoryByUse by_use{};        ///< bytes of each use at the peak
  std::size_t host = 0;        ///< bytes in host memory: state, block inputs
  std::size_t pinned = 0;      ///< part of `host` that the device copies from and to
  std::size_t file = 0;        ///< bytes of state in a file (--state-home)
  /// Parts of `host`: optimizer state that is streamed to the device, and state that the CPU
  /// updates.
  std::size_t visiting_state = 0, cpu_state = 0;
};

/// "weights 2.90 GiB, gradients 5.80 GiB": formats the bytes of each use that has any.
std::string to_text(const MemoryByUse& bytes);

/// Counts the memory of `updates` updates, a validation and the start of a sample on the rank `at`.
/// The mesh of `at` divides the work; --dp, --pp and --tp are ignored. `workspace_bytes` is the
/// workspace that the device's kernels request. With `updates` 1 it may miss what the second update
/// needs while the first is still under way, and takes half as long.
MemoryPlan plan_memory(const TrainConfig& options, const RunSetup& setup,
                       const MemoryChoice& choice, std::size_t workspace_bytes,
                       const MeshRank& at = {}, std::int64_t updates = 2);

/// Counts only the memory held between updates.
MemoryPlan plan_state(const TrainConfig& options, const RunSetup& setup, const MemoryChoice& choice,
                      std::size_t workspace_bytes, const MeshRank& at = {});

}  // namespace sluice
