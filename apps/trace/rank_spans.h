#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/timeline.h"
#include "parallel/comm/communicator.h"

namespace sluice {

/// A timed activity of one rank, on a clock common to all ranks.
struct RankSpan {
  std::array<char, 16> text{};  ///< see name()
  std::int32_t rank = 0;
  std::int32_t lane = 0;
  std::int32_t stage = -1, micro_batch = -1;  ///< see Timeline::Label
  double start = 0, length = 0;               ///< milliseconds

  RankSpan() = default;
  /// `name` is cut off after 15 characters.
  RankSpan(std::string_view name, int of_rank, double begin, double duration,
           Timeline::Label label = {}, Timeline::Lane in = Timeline::Lane::compute);

  std::string_view name() const { return text.data(); }
  double end() const { return start + length; }
};

/// Gathers the timelines of all ranks on rank 0. All ranks construct one object and make the same
/// calls of gather(). Times count from when rank 0's timeline was made.
class RankSpans {
 public:
  /// `started`: when this rank's timeline was made. Ranks of one computer read the same steady
  /// clock (CLOCK_MONOTONIC). The clocks of different computers are compared once, after a barrier,
  /// and may be off by as long as that takes.
  RankSpans(Communicator& all, bool one_computer, Timeline::Clock::time_point started);

  /// Returns the spans by rank and in each rank's order; empty on ranks other than 0.
  std::vector<RankSpan> gather(std::span<const Timeline::Span> mine);

 private:
  Communicator& all_;
  double offset_ = 0;  ///< milliseconds from the common origin to that of this timeline
};

}  // namespace sluice
