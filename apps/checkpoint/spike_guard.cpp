#include "apps/checkpoint/spike_guard.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace sluice {
namespace {

/// Returns standard deviations above the mean. It adds from the oldest to the newest, so that a
/// window that was saved and restored gives the same bits.
double z_score(const std::deque<double>& window, double value) {
  const auto count = static_cast<double>(window.size());
  const double mean = std::accumulate(window.begin(), window.end(), 0.0) / count;
  double squares = 0;
  for (const double one : window)
    squares += (one - mean) * (one - mean);
  // If all values are equal the deviation is 0 / 0, although one more such value is no spike.
  return value == mean ? 0 : (value - mean) / std::sqrt(squares / count);
}

void shorten(std::deque<double>& window, std::int64_t size) {
  while (static_cast<std::int64_t>(window.size()) > size)
    window.pop_front();
}

}  // namespace

std::string SpikeGuard::reason_to_skip(double loss, double gradient_norm) const {
  if (!std::isfinite(loss)) return "the loss is not finite";
  const auto judge_one = [&](const char* what, const std::deque<double>& window, double value,
                             double limit) -> std::string {
    if (limit == 0 || static_cast<std::int64_t>(window.size()) < options_.window) return {};
    const double z = z_score(window, value);
    // The comparison is written so that NaN counts as a spike.
    if (z <= limit) return {};
    return fmt::format(
        "{} {:.4g} is {:.1f} standard deviations above the mean of the last {} updates", what,
        value, z, window.size());
  };
  const std::string spike = judge_one("the loss", losses_, loss, options_.loss);
  if (!spike.empty()) return spike;
  return judge_one("the gradient norm", norms_, gradient_norm, options_.gradient_norm);
}

void SpikeGuard::keep(double loss, double gradient_norm) {
  losses_.push_back(loss);
  norms_.push_back(gradient_norm);
  shorten(losses_, options_.window);
  shorten(norms_, options_.window);
}

nlohmann::json SpikeGuard::state() const {
  if (!active() && skipped_batches_ == 0) return {};
  return {{"loss", losses_}, {"gradient_norm", norms_}, {"skipped_batches", skipped_batches_}};
}

void SpikeGuard::restore(const nlohmann::json& state) {
  *this = SpikeGuard(options_);
  if (state.is_null()) return;
  state.at("skipped_batches").get_to(skipped_batches_);
  // An inactive guard does not update its window, which would be that of another part of the run.
  if (!active()) return;
  state.at("loss").get_to(losses_);
  state.at("gradient_norm").get_to(norms_);
  shorten(losses_, options_.window);
  shorten(norms_, options_.window);
}

}  // namespace sluice
