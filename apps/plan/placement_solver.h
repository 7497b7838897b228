#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "apps/plan/budgets.h"
#include "apps/plan/memory_counter.h"
#include "apps/plan/plan_candidates.h"
#include "apps/plan/planner.h"
#include "models/decoder/placement.h"

namespace sluice {

/// Finds the fastest placement of plan_entries() that fits the budgets and keeps what the user
/// fixes. It solves each entry for the number of blocks whose state is resident on the device and
/// the number that the CPU updates: memory is linear in both. It counts the memory of the result as
/// a whole. All arguments must outlive it.
class PlacementSolver {
 public:
  /// Throws Error (usage) for flags that contradict each other or this device.
  PlacementSolver(const TrainConfig& options, const RunSetup& setup, const DeviceProfile& profile,
                  std::span<const int> ranks);

  /// Returns the best plan; none if nothing fits. In a layer-major pipeline, the weights of the
  /// fewest blocks, but of `least`, are offloaded with which anything fits, and if all do not
  /// suffice, the embeddings' state too.
  std::optional<Plan> best(const StatePrecision& precision, std::int64_t least = 0);

  /// Returns false if weights, gradients and state are more than device and host may hold together,
  /// so that no placement fits.
  bool may_fit(const StatePrecision& precision);

  /// The choice that came nearest to fitting, by an estimate or a count; none before best().
  const std::optional<MemoryChoice>& nearest() const { return nearest_; }
  /// Bytes by which it exceeds the budgets.
  std::size_t excess() const { return nearest_excess_; }
  MemoryPlan count(const MemoryChoice& choice) const { return counter_.all(choice); }
  const Budgets& budgets() const { return budgets_; }
  const PlacementRequest& asked() const { return asked_; }

 private:
  struct StagedPrecision : StatePrecision {
    Staging staging{};
  };
  struct Estimate {
    MemoryChoice choice;
    MemoryBytes need{};
    double seconds = 0;
  };

  bool can_offload_state() const;
  bool can_share_cpu() const;
  bool may_widen_head() const;

  MemoryChoice placed(MemoryChoice choice, std::int64_t resident, std::int64_t by_cpu) const;
  MemoryChoice choice_of(const StagedPrecision& precision) const;
  StateMemory state_memory(const StagedPrecision& precision);
  MemoryBytes transient(const MemoryChoice& like);
  double seconds_of(const MemoryChoice& choice, const StateMemory& state) const;
  std::int64_t cpu_share(const MemoryChoice& choice, std::int64_t resident,
                         const StateMemory& state) const;

  std::optional<Estimate> with_state(const MemoryChoice& choice, const StateMemory& state);
  std::optional<Estimate> solved(const PlanEntry& entry, MemoryChoice choice,
                                 const StateMemory& state);
  std::optional<Estimate> best_estimate(const StagedPrecision& precision, const StateMemory& state);
  std::optional<Plan> best_staged(const StagedPrecision& precision);
  std::optional<Plan> best_of(const StatePrecision& precision);
  MemoryChoice offloading(const StatePrecision& precision) const;
  std::optional<Plan> with_offloaded_weights(const StatePrecision& precision);
  Plan plan_of(const MemoryChoice& choice, const MemoryPlan& memory,
               const StateMemory& state) const;
  Plan with_wide_head(Plan plan, const StateMemory& state) const;
  void note(const MemoryChoice& choice, const MemoryBytes& need);

  const TrainConfig& options_;
  const RunSetup& setup_;
  const DeviceProfile& profile_;
  MemoryCounter counter_;
  std::int64_t layers_;
  std::int64_t offloaded_weights_ = 0;  ///< blocks
  bool offload_embeddings_ = false;
  Budgets budgets_;
  PlacementRequest asked_;
  MemoryBytes margin_{};  ///< by which estimates were too small
  std::optional<MemoryChoice> nearest_;
  std::size_t nearest_excess_ = 0;
};

}  // namespace sluice
