#pragma once

#include "kernels/base/view.h"

namespace sluice {

/// Softmax cross-entropy, fused over the vocabulary. losses[i] = log(sum_j exp(logits[i, j])) -
/// logits[i, targets[i]]. `gradient`, if given, receives gradient_scale * (softmax - one-hot) in
/// its own dtype. It may lie over the logits, row i beginning where row i of the logits does, so
/// that probabilities never exist in memory: an element is read before its place is written.
/// logits: [rows, vocabulary], f32 (f64); gradient: the same shape, rows may be strided;
/// losses: [rows], f32 (f64); targets: [rows] i32.
struct CrossEntropy {
  View losses;
  View logits;
  View gradient{};
  View targets;
  double gradient_scale = 1;
};
void launch_cpu(const CrossEntropy& op);

}  // namespace sluice
