#include "apps/train/bad_steps.h"

#include <fmt/format.h>

namespace sluice {

std::string BadSteps::judge(std::int64_t step, const TrainStep& result) {
  if (result.applied) {
    in_a_row_ = 0;
    return {};
  }
  ++skipped_;
  // Above 1 the loss scale is to blame, which has been halved by now; it gets there in 16 steps.
  if (result.loss_scale > 1)
    return fmt::format(
        "step {}: the gradient overflowed with a loss scale of {}; the update was skipped and the "
        "scale halved",
        step, result.loss_scale);
  ++in_a_row_;
  return fmt::format("step {}: the gradient is not finite; the update was skipped ({} in a row)",
                     step, in_a_row_);
}

void BadSteps::require_good(std::int64_t step) const {
  if (in_a_row_ < most_) return;
  fail(fmt::format("{} gradients in a row were not finite at step {}; the weights are those of the "
                   "last good step and were not saved over; lower --lr or check the data",
                   in_a_row_, step),
       ErrorKind::numerical);
}

}  // namespace sluice
