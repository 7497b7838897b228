#pragma once

#include <cstdint>
#include <string>

#include "apps/train/trainer.h"

namespace sluice {

/// Whether a number can be a mean cross-entropy: finite, and not below zero.
bool is_loss(double loss);

/// Watches over updates that were skipped because of their numbers: too many in a row end the run.
/// One with a loss that is none ends it at once, though its gradient may be finite.
class BadSteps {
 public:
  /// `most` in a row are too many.
  explicit BadSteps(std::int64_t most) : most_(most) {}

  /// A warning about the step, or "".
  std::string judge(std::int64_t step, const TrainStep& result);

  /// Updates so far.
  std::int64_t skipped() const { return skipped_; }
  /// Of them, those whose gradient was finite.
  std::int64_t spikes() const { return spikes_; }
  /// For the final table; "" where none was skipped.
  std::string line() const;
  /// Throws Error (numerical) if the last step was one too many or had no loss.
  void require_good(std::int64_t step) const;

 private:
  std::int64_t most_;
  std::int64_t in_a_row_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t spikes_ = 0;
  std::string why_, no_loss_;
};

}  // namespace sluice
