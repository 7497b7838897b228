#pragma once

#include "kernels/base/view.h"

namespace sluice {

/// Softmax cross-entropy, fused over the vocabulary. losses[i] = log(sum_j exp(logits[i, j])) -
/// logits[i, targets[i]]. With `write_gradient` the logits are overwritten in place by
/// gradient_scale * (softmax - one-hot), so probabilities never exist in memory.
/// logits: [rows, vocabulary]; losses: [rows], f32 (f64); targets: [rows] i32.
struct CrossEntropy {
  View losses;
  View logits;
  View targets;
  double gradient_scale = 1;
  bool write_gradient = false;
};
void launch_cpu(const CrossEntropy& op);

}  // namespace sluice
