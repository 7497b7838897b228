#include "apps/train_gpt2/bad_steps.h"

#include <fmt/format.h>

#include <cmath>

namespace sluice {

bool is_loss(double loss) {
  // Rounding of large logits may leave a value slightly below zero.
  constexpr double least = -0.01;
  return std::isfinite(loss) && loss >= least;
}

double checked_validation(double loss, std::int64_t step) {
  if (!is_loss(loss))
    fail(
        fmt::format("the validation loss of step {} is {:g}, which no cross-entropy is; no model "
                    "was written of it; use a wider --precision, or go on from an older checkpoint",
                    step, std::isnan(loss) ? std::abs(loss) : loss),
        ErrorKind::numerical);
  return loss;
}

std::string BadSteps::record(std::int64_t step, const TrainStep& result) {
  if (result.applied) {
    in_a_row_ = 0;
    if (is_loss(result.loss)) return {};
    // The update has already changed the weights, so it cannot be skipped any more.
    no_loss_ =
        fmt::format("the loss of step {} is {:g}, which no cross-entropy is", step, result.loss);
    return no_loss_;
  }
  ++skipped_;
  const bool finite = std::isfinite(result.gradient_norm);
  // A loss scale above 1 is the likely cause. It has been halved by now and reaches 1 in 16 steps.
  if (!finite && result.weights_finite && result.loss_scale > 1) {
    last_ = fmt::format("the gradient overflowed with a loss scale of {}", result.loss_scale);
    return fmt::format("step {}: {}; the update was skipped and the scale halved", step, last_);
  }
  ++in_a_row_;
  if (finite) ++spikes_;
  last_ = why_ = (finite ? "" : "the gradient is not finite; ") + result.reason;
  return fmt::format("step {}: {}; the update was skipped ({} in a row)", step, why_, in_a_row_);
}

std::string BadSteps::line() const {
  if (skipped_ == 0) return {};
  return fmt::format("skipped      {} updates: {} not finite, {} spikes\n", skipped_,
                     skipped_ - spikes_, spikes_);
}

void BadSteps::require_good(std::int64_t step) const {
  if (!no_loss_.empty())
    fail(fmt::format("{}; nothing was saved after it; check the data and the machine's memory, and "
                     "go on from the newest checkpoint",
                     no_loss_),
         ErrorKind::numerical);
  if (in_a_row_ < most_) return;
  fail(fmt::format("{} updates in a row were skipped at step {}, the last because {}; the weights "
                   "are those of the last good step and were not saved over; lower --lr or check "
                   "the data",
                   in_a_row_, step, why_),
       ErrorKind::numerical);
}

void BadSteps::require_some(std::int64_t step, std::int64_t updates) const {
  if (step == 0 || updates > 0) return;
  fail(fmt::format(
           "every update of {} steps was skipped, the last because {}; the weights are those "
           "of the start, so no model was written; use --precision bf16, or more --steps",
           step, last_),
       ErrorKind::numerical);
}

}  // namespace sluice
