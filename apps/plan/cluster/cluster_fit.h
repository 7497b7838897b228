#pragma once

#include <cstddef>

#include "apps/plan/cluster/cluster_plan.h"

namespace sluice {

/// Returns the bytes above the budgets, and stores the memory of the fullest rank in `candidate`.
std::size_t count_memory(const ClusterTask& task, ClusterCandidate& candidate);

/// Returns the bytes by which the weights and gradients alone exceed the budget. Throws Error
/// (usage) if flags rule the candidate out.
std::size_t least_excess(const ClusterTask& task, const ClusterCandidate& candidate);

/// A candidate completed by the planner with recompute and the placement of state, such that the
/// ends of a pipeline, which need the most memory, fit.
struct ClusterFit {
  ClusterCandidate candidate;  ///< if it does not fit: the nearest choice, without a time
  bool fits = false;
  std::size_t excess = 0;  ///< bytes above the budgets, estimated or counted
};
/// Keeps the candidate's state layout and gradient dtype. Throws Error (usage) if flags rule it
/// out.
ClusterFit fit_candidate(const ClusterTask& task, ClusterCandidate candidate);

}  // namespace sluice
