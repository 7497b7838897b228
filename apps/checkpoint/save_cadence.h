#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

/// When checkpoints are due, by --save-every: a number of steps, a time such as 10min, 0 (only at
/// the end) or auto. auto means every five minutes, or less often if saving is slow, so that it
/// takes at most a twentieth of the time.
class SaveCadence {
 public:
  /// Takes --save-every; none: auto. Throws Error (usage) for any other text.
  explicit SaveCadence(const std::optional<std::string>& asked);

  /// Returns true if a checkpoint is due after this step by the step count; the same on all ranks.
  bool due_by_steps(std::int64_t step) const { return steps_ > 0 && step % steps_ == 0; }
  /// Returns true if one is due by this process's clock.
  bool due_by_time() const;
  /// Tells that a save was made or begun, and for how long training stood still.
  void saved(double waited_ms);

  /// Returns the cadence in words: "every 5 minutes".
  std::string text() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t steps_ = 0;
  std::chrono::duration<double> interval_{0};  ///< 0: not by time
  bool automatic_ = false;
  Clock::time_point last_ = Clock::now();
};

}  // namespace sluice
