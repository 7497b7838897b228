#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace sluice {

/// When checkpoints are due, by --save-every: a number of steps, a time such as 10min, 0 for none
/// before the end, or auto: every five minutes, or more rarely where saving takes long, so that it
/// takes at most a twentieth of the time.
class SaveCadence {
 public:
  /// Throws Error (usage) for any other text.
  explicit SaveCadence(const std::string& text);

  /// Whether a checkpoint is due after this step by the number of steps; the same on all ranks.
  bool due_by_steps(std::int64_t step) const { return steps_ > 0 && step % steps_ == 0; }
  /// Whether one is due by this process's clock.
  bool due_by_time() const;
  /// One has been saved, or began to be; training stood still for so long.
  void saved(double waited_ms);

  /// "every 5 minutes"
  std::string text() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t steps_ = 0;
  std::chrono::duration<double> interval_{0};  ///< 0: the clock decides nothing
  bool automatic_ = false;
  Clock::time_point last_ = Clock::now();
};

}  // namespace sluice
