#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "apps/train/rank_spans.h"
#include "parallel/pipeline/messages.h"
#include "parallel/pipeline/simulator.h"

namespace sluice {

/// How much of its time a pipeline waited, and what its stages cost, from the spans that its ranks
/// recorded.
class PipelineTimes {
 public:
  /// `again`: what backward needs is computed a second time, and counts as backward.
  PipelineTimes(Schedule schedule, bool again);

  /// One step of all replicas: rank r is rank r % P of replica r / P. In each rank's order.
  void add(std::span<const RankSpan> spans);

  std::int64_t steps() const { return steps_; }
  /// The share of the time that ranks did not compute, from the first computing of a step in a
  /// pipeline to the last.
  double bubble() const;
  /// Means, in milliseconds. A message takes from the end of the computing until it was there: the
  /// mean of each step's median, among those that a rank waited for, and nothing where there were
  /// none.
  std::vector<StageCosts> costs() const;
  /// What the bubble should be if everything took its mean.
  BubbleSplit predicted() const { return split_bubble(schedule_, costs()); }

 private:
  struct Mean {
    double sum = 0;
    std::int64_t count = 0;

    void add(double value) { sum += value, ++count; }
    double value() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  };
  struct Stage {
    Mean forward, backward, message;
  };
  /// One replica's step as it is read.
  struct Reading;

  void read(const RankSpan& span, const RankSpan* before, Reading& reading);
  void count_messages(const Reading& reading);
  Stage& stage(int number) { return stages_[static_cast<std::size_t>(number)]; }

  Schedule schedule_;
  Messages messages_;
  bool again_;
  std::vector<Stage> stages_;
  std::int64_t steps_ = 0;
  double busy_ = 0, available_ = 0;  ///< milliseconds of ranks
};

}  // namespace sluice
