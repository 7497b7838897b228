#pragma once

#include <cstdint>
#include <string>

#include "apps/train/trainer.h"

namespace sluice {

/// Returns true if a number can be a mean cross-entropy: finite, and not below zero.
bool is_loss(double loss);
/// Returns the validation loss of a step. Throws Error (numerical) if it can be none.
double checked_validation(double loss, std::int64_t step);

/// Counts updates that were skipped because of their numbers: too many in a row end the run. An
/// applied update whose loss is no valid loss ends it at once, even if its gradient is finite.
class BadSteps {
 public:
  /// `most` skipped updates in a row end the run.
  explicit BadSteps(std::int64_t most) : most_(most) {}

  /// Records a step and returns a warning about it, or "".
  std::string record(std::int64_t step, const TrainStep& result);

  /// Returns how many updates were skipped so far.
  std::int64_t skipped() const { return skipped_; }
  /// Returns how many of them had a finite gradient.
  std::int64_t spikes() const { return spikes_; }
  /// Returns a line for the final table; "" if no update was skipped.
  std::string line() const;
  /// Throws Error (numerical) if too many updates in a row were skipped or a loss was not valid.
  void require_good(std::int64_t step) const;
  /// Throws Error (numerical) if steps were done and not one has changed the weights. `updates`:
  /// those that were applied, also before the run was resumed.
  void require_some(std::int64_t step, std::int64_t updates) const;

 private:
  std::int64_t most_;
  std::int64_t in_a_row_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t spikes_ = 0;
  std::string why_, no_loss_, last_;  ///< last_: why the last update was skipped
};

}  // namespace sluice
