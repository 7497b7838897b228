#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/training/training.h"

// Changes weights temporarily to unusual values.

namespace sluice::test {

struct Change {
  std::string name;
  std::int64_t element;
  float value;
};

/// Changes weights that this rank holds. All ranks call it, even without changes of their own.
/// Returns the previous values, to be restored by another call.
inline std::vector<Change> change_weights(TrainingRun& run, const std::vector<Change>& changes) {
  run.training().parallel.optimizer.synchronize();
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
