#pragma once

#include <map>
#include <string>

#include "tests/support/gradcheck.h"
#include "tests/support/training/training.h"

namespace sluice::test {

/// The result of one training step.
struct OneStep {
  double loss = 0, norm = 0;
  /// The gradients by name, in f64, of the parameters that no ranks divide.
  std::map<std::string, Values> gradients{};
};

/// Trains one step with the batch as the ranks of the task.
OneStep one_step(const TrainingTask& task, const MemoryChoice& choice, const Batch& batch,
                 DeviceKind kind);

/// The ways in which ranks divide the step, and what they compute again.
struct StepLayout {
  std::int64_t dp, pp, tp, micro_batch;
  const char* pipeline = "";
  bool sequence_parallel = false;
  Recompute recompute = Recompute::none;

  std::string text() const;
};
/// The same, as `layout` says.
OneStep one_step(TrainingTask task, const StepLayout& layout, const Batch& batch, DeviceKind kind);

/// Checks that loss, norm and all gradients of `actual` are those of `expected`, which may have
/// more of them. `bound` is relative, for a gradient to its largest element.
void check_close(const OneStep& actual, const OneStep& expected, double bound);

}  // namespace sluice::test
