#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "apps/plan/budgets.h"
#include "apps/plan/cost/cost_model.h"
#include "apps/plan/state_memory.h"
#include "apps/train/config.h"
#include "apps/train/setup.h"

namespace sluice {

/// Decides when, and whether by the GPU or by the CPU, the blocks with state in host memory are
/// updated. Flags come first; the rest is chosen for the shortest predicted step. `transient`:
/// memory that a training step needs beyond what is held between steps.
class UpdatePlacement {
 public:
  UpdatePlacement(const TrainConfig& options, const RunSetup& setup, const DeviceProfile& profile,
                  const Budgets& budgets);

  StepTime time_of(const MemoryChoice& choice, const StateMemory& state) const;

  /// True if how many blocks the CPU updates can be chosen.
  bool uses_cpu() const;
  /// Returns how many blocks the CPU updates: `asked`, or all that are not on the GPU if their
  /// state is in a file.
  std::int64_t by_cpu(const MemoryChoice& choice, std::int64_t asked) const;
  /// Returns how many blocks the CPU updates. More of them shorten the wait for copies and lengthen
  /// the wait for the CPU. Returns 0 if they would save less than 1 %.
  std::int64_t cpu_blocks(MemoryChoice choice, const MemoryBytes& transient,
                          const StateMemory& state) const;

  /// True if the CPU may update all offloaded blocks: no flag fixes its share or asks to speculate.
  bool may_do_without_ring() const {
    return !options_.memory.cpu_blocks && uses_cpu() && speculative_.value_or(0) == 0;
  }

  bool speculates() const { return speculative_ != 0; }
  bool may_stop_speculating(const MemoryChoice& choice) const {
    return !speculative_ && choice.speculative_blocks > 0;
  }
  /// Returns how many blocks of a changed choice are speculative: as the flag or else the choice
  /// says, at most the visiting blocks.
  std::int64_t still_speculative(const MemoryChoice& choice) const {
    return std::min(speculative_.value_or(choice.speculative_blocks), choice.streamed_blocks());
  }
  /// Returns how many blocks to update speculatively: the flag's value, or for auto the fewest that
  /// give the shortest step, since each takes host memory.
  std::int64_t speculative_blocks(MemoryChoice choice, const MemoryBytes& transient,
                                  const StateMemory& state) const;

 private:
  std::int64_t max_speculative(const MemoryChoice& choice, const MemoryBytes& transient,
                               const StateMemory& state) const;

  const TrainConfig& options_;
  const RunSetup& setup_;
  const DeviceProfile& profile_;
  std::int64_t layers_;
  std::size_t host_room_;                    ///< bytes
  std::optional<std::int64_t> speculative_;  ///< none: auto
};

}  // namespace sluice
