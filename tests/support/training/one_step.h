#pragma once

#include <map>
#include <string>

#include "tests/support/gradcheck.h"
#include "tests/support/training/training.h"

namespace sluice::test {

/// What one step of training gives.
struct OneStep {
  double loss = 0, norm = 0;
  /// By name, of the parameters that no ranks divide; in f64.
  std::map<std::string, Values> gradients{};
};

/// Trains one step with the batch as the ranks of the task.
OneStep one_step(const TrainingTask& task, const MemoryChoice& choice, const Batch& batch,
                 DeviceKind kind);

/// Checks that loss, norm and all gradients of `actual` are those of `expected`, which may have
/// more of them. `bound` is relative, for a gradient to its largest element.
void check_close(const OneStep& actual, const OneStep& expected, double bound);

}  // namespace sluice::test
