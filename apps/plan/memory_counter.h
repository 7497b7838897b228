#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/plan/cost/device_profile.h"
#include "apps/plan/memory_plan.h"
#include "apps/plan/state_memory.h"

namespace sluice {

inline MemoryBytes bytes_of(const MemoryPlan& memory) {
  return {memory.high_water, memory.host, memory.file};
}

/// Counts the memory of a run's choices by dry runs of some of its ranks, each of which may need
/// the most. All arguments must outlive the counter.
class MemoryCounter {
 public:
  MemoryCounter(const TrainConfig& options, const RunSetup& setup, const DeviceProfile& profile,
                std::span<const int> ranks)
      : options_(options),
        setup_(setup),
        workspace_(profile.workspace),
        mesh_(options.parallel.mesh()),
        ranks_(ranks) {}

  /// Returns the memory of the rank that needs the most device memory.
  MemoryPlan all(const MemoryChoice& choice) const;
  /// Returns the memory held between updates: the maximum over the ranks, separately for device and
  /// host.
  MemoryBytes state(const MemoryChoice& choice);
  /// Returns the bytes of the first rank's gradients.
  std::size_t gradients(const MemoryChoice& choice);
  /// Returns the temporary memory of one update, beyond what is held between updates. It remembers
  /// the answer by micro-batch and recompute: `choice` may differ in nothing else between calls. It
  /// counts one update, and a second one may need more while the first is still under way.
  MemoryBytes transient(const MemoryChoice& choice);

 private:
  /// Returns what a rank holds between updates, and remembers it.
  const MemoryPlan& held(const MemoryChoice& choice, int rank);

  const TrainConfig& options_;
  const RunSetup& setup_;
  const std::size_t workspace_;
  Mesh mesh_;
  std::span<const int> ranks_;
  std::map<std::pair<std::int64_t, std::string>, MemoryBytes> transients_;
  std::map<std::pair<std::string, int>, MemoryPlan> held_;  ///< by flags and rank
};

}  // namespace sluice
