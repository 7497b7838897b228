#pragma once

#include <cstdint>

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// Softmax cross-entropy where several ranks have a part of the vocabulary each: two steps, between
/// which they exchange three numbers a row (Shoeybi et al., "Megatron-LM", 2019). This one finds
/// them for the columns [first, first + n) of the vocabulary, which `logits` are: the largest
/// logit; the sum of exp(logit - largest); the target's logit, or 0 where another rank has it.
/// partials: [rows, 3], f32 (f64); logits: [rows, n], likewise, rows may be strided, and n may be
/// 0; targets: [rows] i32, of the whole vocabulary.
struct CrossEntropyPartials {
  View partials;
  View logits;
  View targets;
  std::int64_t first = 0;
};
void launch_cpu(const CrossEntropyPartials& op);
void launch_cuda(const CrossEntropyPartials& op, Stream stream);

/// The other: losses, the same bits on every rank, and the gradient of these columns, from the
/// numbers of all ranks in the order of the ranks. partials: [ranks, rows, 3]. Everything else as
/// in CrossEntropy; the gradient may lie over the logits just so.
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
