#pragma once

#include <vector>

#include "parallel/pipeline/schedule.h"

namespace sluice {

/// Costs of one micro-batch, in seconds or any other unit.
struct StageCosts {
  double forward = 1, backward = 2;
  double send = 0;     ///< time until the data that the stage sends has arrived on the other rank
  double weights = 1;  ///< part of `backward` for the weights' gradients

  /// Returns the cost of an action that computes. `split`: of splits_backward().
  double of(Action::Kind kind, bool split) const {
    if (kind == Action::Kind::forward) return forward;
    if (kind == Action::Kind::weight_gradients) return weights;
    return split ? backward - weights : backward;
  }
};

struct Simulation {
  struct Span {
    Action action;
    double start = 0, end = 0;
  };

  std::vector<std::vector<Span>> ranks{};  ///< actions that compute, ascending in time
  double makespan = 0;
  std::vector<double> busy{};  ///< seconds that each rank computes

  /// The fraction of the time in which a rank waits.
  double bubble(int rank) const;
  /// The same fraction for all ranks together.
  double bubble() const;
};

/// Computes when every action starts and ends if each starts as soon as its rank and its input are
/// ready. A message arrives StageCosts::send after the action that computed it, and delays neither
/// rank. Between stages of one rank it takes no time. It makes no difference whether the schedule
/// is lowered. Throws Error if some action can never start.
///
/// Bubbles for P ranks, V virtual stages on each rank, M micro-batches, stages of equal cost and
/// messages that take no time:
///   layer_split                       (P - 1) / P
///   layer_major                       0, since P is 1
///   gpipe, one_forward_one_backward   (P - 1) / (M + P - 1)
///   interleaved, if P divides M       B / (M + B), where B = (P - 1) / V
///   zero_bubble_h1, if M >= P         B / (M (F + I + W) + B), where B = (P - 1) (F + I - W)
/// F is the forward's cost, I that of the inputs' gradients, W that of the weights'. Where W is
/// more than F or I, the bubble of zero_bubble_h1 may be larger. If P does not divide M, the bubble
/// of interleaved is at least the last formula's value. For all P from 2 to 16, V from 2 to 4 and M
/// from 1 to 128 it is at most 3.1 times that value.
Simulation simulate(const Schedule& schedule, const std::vector<StageCosts>& costs);

/// Splits the bubble by cause: three fractions of the time, whose sum is the bubble.
struct BubbleSplit {
  double schedule = 0;       ///< if all stages cost the same and messages nothing
  double imbalance = 0;      ///< the additional part since stages cost differently
  double communication = 0;  ///< the additional part since messages take time
};

BubbleSplit split_bubble(const Schedule& schedule, const std::vector<StageCosts>& costs);

}  // namespace sluice
