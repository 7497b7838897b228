#pragma once

#include <optional>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace sluice {

/// What a rank needs memory for, found while its schedule was validated. One number a rank.
struct ScheduleFacts {
  /// Most micro-batches, counted once a stage, whose forward is done and whose backward is not.
  std::vector<int> live{};
  /// Most inputs and gradients that memory is held for: posted, and the action that needs them has
  /// not begun.
  std::vector<int> received{};
};

/// Proves that a lowered schedule runs to its end and computes what it should, or throws an Error
/// that says what is wrong and shows where. All stages and micro-batches go forward and backward
/// once; gradients are added in ascending order; messages match in number and order; and no rank
/// waits for ever even where nothing is buffered: a send ends when its receive has been posted,
/// which does not wait, and what needs a message waits until its send has begun. `most_live` limits
/// ScheduleFacts::live. Time and memory are linear in the number of actions.
ScheduleFacts validate(const Schedule& lowered, std::optional<int> most_live = {});

}  // namespace sluice
