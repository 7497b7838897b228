#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// The target of a row that does not count: its loss and its gradient are 0. So is any negative
/// target. PyTorch calls it ignore_index.
inline constexpr std::int32_t no_target = -1;

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

/// Softmax cross-entropy if ranks divide the vocabulary. It takes two steps, between which the
/// ranks exchange three numbers per row (Shoeybi et al., "Megatron-LM", 2019). This step computes
/// them for `logits`, the columns [first, first + n) of the vocabulary: the largest logit; the sum
/// of exp(logit - largest); the target's logit, or 0 if another rank has it. partials: [rows, 3],
/// f32 (f64); logits: [rows, n], same dtype, rows may be strided, and n may be 0; targets: [rows]
/// i32, ids of the whole vocabulary.
struct CrossEntropyPartials {
  View partials;
  View logits;
  View targets;
  std::int64_t first = 0;
};
void launch_cpu(const CrossEntropyPartials& op);
void launch_cuda(const CrossEntropyPartials& op, Stream stream);

/// The second step computes the losses, with the same bits on every rank, and the gradient of this
/// rank's columns from the partials of all ranks, in rank order. partials: [ranks, rows, 3].
/// Everything else is as in CrossEntropy; the gradient may overlay the logits as there.
struct CrossEntropyOfPartials {
  View losses;
  View logits;
  View gradient{};
  View targets;
  View partials;
  std::int64_t first = 0;
  double gradient_scale = 1;
  std::int64_t padding = 0;
};
void launch_cpu(const CrossEntropyOfPartials& op);
void launch_cuda(const CrossEntropyOfPartials& op, Stream stream);

}  // namespace sluice
