#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "apps/train/budgets.h"
#include "apps/train/cost_model.h"
#include "apps/train/options.h"
#include "apps/train/setup.h"
#include "apps/train/state_need.h"

namespace sluice {

/// Who updates the blocks whose state rests on the host, and when: what suits best of what flags
/// leave open, by the predicted time of a step. `passing` is what an update takes for a while.
class StateShares {
 public:
  StateShares(const TrainOptions& options, const RunSetup& setup, const DeviceProfile& profile,
              const Budgets& budgets);

  StepTime time_of(const MemoryChoice& choice, const StateNeed& state) const;

  bool uses_cpu() const;
  /// More of them shorten the wait for copies and lengthen that for the CPU; a little is not worth
  /// the trouble.
  std::int64_t cpu_blocks(MemoryChoice choice, const Need& passing, const StateNeed& state) const;

  /// The CPU may take all that the device has no room for: nothing was said of either share.
  bool may_do_without_ring() const {
    return !o_.cpu_blocks && uses_cpu() && speculative_.value_or(0) == 0;
  }

  bool speculates() const { return speculative_ != 0; }
  bool may_stop_speculating(const MemoryChoice& choice) const {
    return !speculative_ && choice.speculative_blocks > 0;
  }
  /// Of a choice that has been changed: no more than visit the device, and what the flag says.
  std::int64_t still_speculative(const MemoryChoice& choice) const {
    return std::min(speculative_.value_or(choice.speculative_blocks), choice.visiting_blocks());
  }
  /// What the flag says; auto: what saves most, and no more, since they take memory of the host.
  std::int64_t speculative_blocks(MemoryChoice choice, const Need& passing,
                                  const StateNeed& state) const;

 private:
  std::int64_t most_speculative(const MemoryChoice& choice, const Need& passing,
                                const StateNeed& state) const;

  const TrainOptions& o_;
  const RunSetup& setup_;
  const DeviceProfile& profile_;
  std::int64_t layers_;
  std::size_t host_room_;                    ///< bytes
  std::optional<std::int64_t> speculative_;  ///< none: as many as save time
};

}  // namespace sluice
