#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/timeline.h"
#include "parallel/communicator.h"

namespace sluice {

/// What some rank did when, on a clock of all ranks.
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

/// Brings together at the first rank what the timelines of all ranks hold. All ranks make one and
/// call gather() alike. Times count from when the first rank's timeline was made.
class RankSpans {
 public:
  /// `started`: this rank's timeline. Ranks of one computer read the same steady clock
  /// (CLOCK_MONOTONIC); between computers clocks are compared once, after a barrier, and may differ
  /// by as long as that takes.
  RankSpans(Communicator& all, bool one_computer, Timeline::Clock::time_point started);

  /// By rank and in each rank's order; nothing at other ranks than the first.
  std::vector<RankSpan> gather(std::span<const Timeline::Span> mine);

 private:
  Communicator& all_;
  double offset_ = 0;  ///< milliseconds from the common origin to this timeline's
};

}  // namespace sluice
