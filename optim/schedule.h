#pragma once

#include <cstdint>

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
  double at(std::int64_t k) const;
};

}  // namespace sluice
