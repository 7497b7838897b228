#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/training.h"

// Weights that a test makes unusual for a while.

namespace sluice::test {

struct Change {
  std::string name;
  std::int64_t element;
  float value;
};

/// Changes the weights that this rank has; all ranks call it, also without changes of their own.
/// Returns what was there before, for another call.
inline std::vector<Change> change_weights(TrainingRun& run, const std::vector<Change>& changes) {
  run.training().parallel.optimizer.settle();
  ParameterSpace& space = run.training().space;
  std::vector<Change> before;
  for (Change change : changes) {
    const auto* slot = space.find(change.name);
    if (slot == nullptr) continue;
    const float value = change.value;
    space.read_weights(slot->offset + change.element,
                       std::as_writable_bytes(std::span(&change.value, 1)));
    before.push_back(change);
    run.set_weight(change.name, change.element, value);
  }
  return before;
}

}  // namespace sluice::test
