#pragma once

#include <cstdint>

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// Softmax cross-entropy, fused over the vocabulary. losses[i] = log(sum_j exp(logits[i, j])) -
/// logits[i, targets[i]]. `gradient`, if given, receives gradient_scale * (softmax - one-hot) in
/// its own dtype. It may overlay the logits, each row beginning where that row of the logits does,
/// so that probabilities never exist in memory: an element is read before its place is written.
/// logits: [rows, vocabulary], f32 (f64), rows may be strided; gradient: same shape, and `padding`
/// columns after each row are zeroed; losses: [rows], f32 (f64); targets: [rows] i32.
struct CrossEntropy {
  View losses;
  View logits;
  View gradient{};
  View targets;
  double gradient_scale = 1;
  std::int64_t padding = 0;
};
void launch_cpu(const CrossEntropy& op);
void launch_cuda(const CrossEntropy& op, Stream stream);

}  // namespace sluice
