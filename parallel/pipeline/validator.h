#pragma once

#include <optional>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace sluice {

/// Peak memory counts of every rank, found while a schedule was validated. One number per rank.
struct ScheduleFacts {
  /// Most micro-batches, counted once per stage, whose forward is done and whose backward is not.
  std::vector<int> live{};
  /// Largest number of inputs and gradients held in memory: their receive is posted, and the action
  /// that needs them has not begun.
  std::vector<int> received{};
};

/// Proves that a lowered schedule runs to its end and computes the right result, or throws an Error
/// that says what is wrong and shows where. All stages and micro-batches must go forward and
/// backward once; gradients must be added in ascending order; messages must match in number and
/// order; and no rank may wait for ever, even without buffering: a send ends when its receive has
/// been posted, posting does not wait, and the use of a message waits until its send has begun.
/// `most_live` limits ScheduleFacts::live. Time and memory are linear in the number of actions.
ScheduleFacts validate(const Schedule& lowered, std::optional<int> most_live = {});

}  // namespace sluice
