#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "apps/trace/rank_spans.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulator.h"

namespace sluice {

/// Measures what share of its time a pipeline waited, and what its stages cost, from the spans that
/// its ranks recorded.
class PipelineTimes {
 public:
  /// `again`: stages run forward a second time for backward; that run counts as backward.
  PipelineTimes(Schedule schedule, bool again);

  /// Adds a step of all replicas: rank r is rank r % P of replica r / P. In each rank's order.
  void add(std::span<const RankSpan> spans);

  std::int64_t steps() const { return steps_; }
  /// Returns the share of time in which ranks did not compute, from the first computation of a step
  /// in a pipeline to the last.
  double bubble() const;
  /// Returns mean costs in milliseconds. A message takes from the end of the computation to its
  /// arrival: the mean over steps of the median over messages that a rank waited for; 0 if there
  /// were none.
  std::vector<StageCosts> costs() const;
  /// Returns the bubble that would result if every action took its mean time.
  BubbleSplit predicted() const { return split_bubble(schedule_, costs()); }

 private:
  struct Mean {
    double sum = 0;
    std::int64_t count = 0;

    void add(double value) { sum += value, ++count; }
    double value() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  };
  struct Stage {
    Mean forward, backward, weights, message;
  };
  /// State while the step of one replica is read.
  struct Reading;

  void read(const RankSpan& span, const RankSpan* before, Reading& reading);
  void count_messages(const Reading& reading);
  Stage& stage(int number) { return stages_[static_cast<std::size_t>(number)]; }

  Schedule schedule_;
  Messages messages_;
  bool again_;
  std::vector<Stage> stages_;
  std::int64_t steps_ = 0;
  double busy_ = 0, available_ = 0;  ///< milliseconds, summed over ranks
};

}  // namespace sluice
