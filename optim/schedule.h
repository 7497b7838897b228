#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace sluice {

enum class ScheduleKind { constant, cosine, linear };

/// The learning rate as a pure function of the update. With W warm-up steps and N updates in all it
/// is rate * (k+1) / W for k < W. Afterwards, with r = (k-W) / max(1, N-W), it is constant or falls
/// to `final_rate` linearly or along half a cosine (Loshchilov & Hutter, SGDR, 2017, eq. 5).
struct RateSchedule {
  ScheduleKind kind = ScheduleKind::constant;
  double rate = 0;
  double final_rate = 0;
  std::int64_t warmup = 0;
  std::int64_t updates = 0;

  /// The rate of update k, counted from 0.
  double at(std::int64_t k) const {
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
};

}  // namespace sluice
