#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "apps/plan/planner.h"
#include "tests/support/catch.h"
#include "tests/support/form.h"
#include "tests/support/training/options.h"

// Plans for an artificial machine, requested with train_gpt2's flags.

namespace sluice::test {

/// Returns the profile of a generic machine.
inline DeviceProfile machine(bool gpu) {
  return {.name = "test",
          .gpu = gpu,
          .capability = gpu ? 86 : 0,
          .multiprocessors = gpu ? 4 : 0,
          .memory = std::size_t{1} << 30,
          .workspace = gpu ? std::size_t{1} << 20 : 0,
          .context = gpu ? std::size_t{3} << 20 : 0,
          .communication = 0,
          .process = std::size_t{2} << 20,
          .wide_flops = 1e11,
          .narrow_flops = 4e11,
          .memory_rate = 1e11,
          .to_device_rate = 1e9,
          .to_host_rate = 1e9,
          .host_rate = gpu ? 5e9 : 0};
}

inline Planned plan(const std::string& flags, bool gpu) {
  const TrainConfig options = parsed(flags);
  const DeviceProfile profile = machine(gpu);
  return plan_run(options, resolve_shape(options, gpu, profile.capability, profile.name), profile);
}

inline std::string budget(std::size_t device, std::size_t host, bool gpu) {
  std::ostringstream flags;
  if (gpu) flags << " --gpu-memory " << device;
  flags << " --host-memory " << (gpu ? host : device);
  return flags.str();
}

struct MemoryBytes {
  std::size_t device, host;
};
/// Returns the memory that the budget flags must allow for this plan.
inline MemoryBytes need_of(const Plan& plan, bool gpu) {
  const DeviceProfile profile = machine(gpu);
  return {plan.memory.high_water + (gpu ? profile.context : profile.process),
          plan.memory.host + profile.process};
}

inline bool same(const Plan& a, const Plan& b) {
  return to_flags(a.choice) == to_flags(b.choice) && a.memory.peak == b.memory.peak &&
         a.memory.high_water == b.memory.high_water && a.memory.by_use == b.memory.by_use &&
         a.memory.host == b.memory.host && a.time.total() == b.time.total();
}

/// A request to the planner: the run, and how it may place its memory.
struct PlanRow {
  std::string shape, wishes;
  bool gpu = true;

  std::string flags() const { return shape + wishes; }
};

inline const std::string small_shape =
    "--n-layer 4 --n-head 2 --n-embd 64 --vocab-size 101 --context 32 --batch-size 8";
inline const std::string odd_shape =
    "--n-layer 5 --n-head 3 --n-embd 66 --vocab-size 77 --context 48 --batch-size 4";

/// Calls action(budgets) for budgets from enough for every request down to enough for none: all, or
/// a quarter of them, and not the same one for all requests.
template <class Action>
void for_budgets(const PlanRow& row, Action&& action, bool all = long_form()) {
  const Planned free = plan(row.flags() + budget(1 << 30, 1 << 30, row.gpu), row.gpu);
  const MemoryBytes most = need_of(free.chosen, row.gpu);
  auto place = static_cast<std::int64_t>(row.wishes.size());
  for (const double share : {1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3})
    for (const bool plenty : {true, false}) {
      if (!row.gpu && !plenty) continue;
      if (!all && place++ % 4 != 0) continue;
      const auto device = static_cast<std::size_t>(static_cast<double>(most.device) * share);
      const std::size_t host = plenty ? most.host + most.device : most.host * 7 / 10;
      CAPTURE(row.shape, row.wishes, device, host);
      // Another test covers a host too small for the process itself.
      action(MemoryBytes{std::max<std::size_t>(device, 1 << 20),
                         std::max(host, machine(row.gpu).process)});
    }
}

}  // namespace sluice::test
