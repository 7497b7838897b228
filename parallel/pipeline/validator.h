#pragma once

#include <optional>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace sluice {

/// Peak counts of what each rank holds in memory; validate() finds them. One number per rank.
struct ScheduleFacts {
  /// Largest number of (stage, micro-batch) pairs whose forward is done and whose backward, with
  /// the weights' gradients, is not.
  std::vector<int> live{};
  /// The same without the weights' gradients: a stage's input is kept until its backward.
  std::vector<int> inputs{};
  /// Largest number of inputs and gradients whose receive is posted and whose action has not begun.
  std::vector<int> received{};
};

/// Proves that a lowered schedule runs to its end and computes the right result, or throws an Error
/// that says what is wrong and shows where. Every micro-batch must go forward and backward through
/// every stage once. Gradients must be added in ascending order of micro-batches. Messages must
/// match in number and order. No rank may wait for ever, even without buffering (see
/// check_rendezvous). `max_live` limits ScheduleFacts::live. Time and memory are linear in the
/// number of actions.
ScheduleFacts validate(const Schedule& lowered, std::optional<int> max_live = {});

}  // namespace sluice
