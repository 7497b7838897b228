#pragma once

#include <vector>

#include "parallel/pipeline/schedule.h"

namespace sluice {

/// Seconds, or any other unit, of one micro-batch.
struct StageCosts {
  double forward = 1, backward = 2;
  double send = 0;  ///< until what the stage sends has arrived on the other rank
};

struct Simulation {
  struct Span {
    Action action;
    double start = 0, end = 0;
  };

  std::vector<std::vector<Span>> ranks{};  ///< what computes, ascending
  double makespan = 0;
  std::vector<double> busy{};  ///< seconds that each rank computes

  /// The fraction of the time that a rank waits.
  double bubble(int rank) const;
  /// The same of all ranks together.
  double bubble() const;
};

/// When everything happens if every action begins as soon as it can in its rank's order. A message
/// takes its time from the end of the computing, keeps neither rank from computing, and does not
/// wait for memory; whether the schedule sends and receives makes no difference. An Error if some
/// action never begins. Stages of one rank pass their results in no time.
///
/// With equal stages and free messages the bubble of layer_split is (P-1)/P, that of gpipe and
/// one_forward_one_backward (P-1)/(M+P-1), that of interleaved B/(M+B) with B = (P-1)/v where P
/// divides M. Where it does not, it is never smaller (P 2..16, v 2..4, M 1..128) and up to 3.1
/// times as large (P 3, v 4, M 127: 1.2 % for 0.4 %).
Simulation simulate(const Schedule& schedule, const std::vector<StageCosts>& costs);

/// Why ranks wait: three fractions of the time, whose sum is the bubble.
struct BubbleSplit {
  double schedule = 0;       ///< if all stages cost the same and messages nothing
  double imbalance = 0;      ///< more than that since they do not
  double communication = 0;  ///< more than that since messages take time
};

BubbleSplit split_bubble(const Schedule& schedule, const std::vector<StageCosts>& costs);

}  // namespace sluice
