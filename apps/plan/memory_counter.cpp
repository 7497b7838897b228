#include "apps/plan/memory_counter.h"

#include <algorithm>
#include <optional>

namespace sluice {

MemoryPlan MemoryCounter::all(const MemoryChoice& choice) const {
  std::optional<MemoryPlan> most;
  for (const int rank : ranks_) {
    const MemoryPlan plan = plan_memory(options_, setup_, choice, workspace_, {mesh_, rank});
    if (!most || plan.high_water > most->high_water) most = plan;
  }
  return *most;
}

const MemoryPlan& MemoryCounter::held(const MemoryChoice& choice, int rank) {
  const auto [entry, fresh] = held_.try_emplace({to_flags(choice), rank});
  if (fresh) entry->second = plan_state(options_, setup_, choice, workspace_, {mesh_, rank});
  return entry->second;
}

MemoryBytes MemoryCounter::state(const MemoryChoice& choice) {
  MemoryBytes most;
  for (const int rank : ranks_) {
    const MemoryPlan& plan = held(choice, rank);
    most.device = std::max(most.device, plan.high_water);
    most.host = std::max(most.host, plan.host);
    most.file = std::max(most.file, plan.file);
  }
  return most;
}

std::size_t MemoryCounter::gradients(const MemoryChoice& choice) {
  return held(choice, ranks_.front()).by_use[static_cast<std::size_t>(MemoryUse::gradients)];
}

MemoryBytes MemoryCounter::transient(const MemoryChoice& choice) {
  const auto [entry, unknown] =
      transients_.try_emplace({choice.micro_batch, to_string(choice.placement)});
  if (!unknown) return entry->second;
  MemoryBytes& most = entry->second;
  for (const int rank : ranks_) {
    // The planner counts what it chooses by these again, with two updates.
    const MemoryPlan all = plan_memory(options_, setup_, choice, workspace_, {mesh_, rank}, 1);
    // Recomputing does not change what is held between updates.
    const MemoryPlan& before = held(without_recompute(choice), rank);
    most.device = std::max(most.device, all.high_water - before.high_water);
    most.host = std::max(most.host, all.host - before.host);
  }
  return most;
}

}  // namespace sluice
