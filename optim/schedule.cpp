#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice {

double RateSchedule::at(std::int64_t k) const {
  if (k < warmup) return rate * static_cast<double>(k + 1) / static_cast<double>(warmup);
  const double progress =
      std::min(1.0, static_cast<double>(k - warmup) /
                        static_cast<double>(std::max<std::int64_t>(1, updates - warmup)));
  switch (kind) {
    case ScheduleKind::constant:
      return rate;
    case ScheduleKind::linear:
      return rate + (final_rate - rate) * progress;
    case ScheduleKind::cosine:
      return final_rate + (rate - final_rate) * (1 + std::cos(std::numbers::pi * progress)) / 2;
  }
  return rate;
}

}  // namespace sluice
