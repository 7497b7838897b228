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

MemoryBytes MemoryCounter::state(const MemoryChoice& choice) const {
  MemoryBytes most;
  for (const int rank : ranks_) {
    const MemoryPlan plan = plan_state(options_, setup_, choice, workspace_, {mesh_, rank});
    most.device = std::max(most.device, plan.high_water);
    most.host = std::max(most.host, plan.host);
  }
  return most;
}

std::size_t MemoryCounter::gradients(const MemoryChoice& choice) const {
  const MemoryPlan plan = plan_state(options_, setup_, choice, workspace_, {mesh_, ranks_.front()});
  return plan.by_use[static_cast<std::size_t>(MemoryUse::gradients)];
}

MemoryBytes MemoryCounter::transient(const MemoryChoice& choice) {
  const auto [entry, unknown] =
      transients_.try_emplace({choice.micro_batch, to_string(choice.recompute)});
  if (!unknown) return entry->second;
  MemoryBytes& most = entry->second;
  for (const int rank : ranks_) {
    // The planner counts what it chooses by these again, with two updates.
    const MemoryPlan all = plan_memory(options_, setup_, choice, workspace_, {mesh_, rank}, 1);
    // Recomputing does not change what is held between updates.
    const auto [held, fresh] = states_.try_emplace({choice.micro_batch, rank});
    if (fresh)
      held->second = bytes_of(plan_state(options_, setup_, choice, workspace_, {mesh_, rank}));
    most.device = std::max(most.device, all.high_water - held->second.device);
    most.host = std::max(most.host, all.host - held->second.host);
  }
  return most;
}

}  // namespace sluice
