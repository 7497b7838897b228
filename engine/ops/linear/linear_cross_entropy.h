#pragma once

#include <cstdint>

#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

struct LinearCrossEntropyOptions {
  /// Multiplies every token's loss: 1 / (targets of the whole update), so that sums over
  /// micro-batches and ranks are a mean without a further pass.
  double scale = 1;
  /// Multiplies the gradients in addition, but not the loss: prevents underflow in f16
  /// (Micikevicius et al., "Mixed precision training", 2018, section 3.2).
  double loss_scale = 1;
  /// Number of tokens whose logits exist at one time. The gradient of the table is read and written
  /// once for each chunk, and its sum is rounded once for each.
  std::int64_t chunk = 1024;
  Tensor bias{};  ///< of the logits, [V]; a leaf, or none
  /// Ranks that divide the vocabulary; this rank's part begins with vocabulary row `first_row`. No
  /// rank has the logits of all rows. The parts of the gradient of `hidden` are summed.
  TensorGroup* group = nullptr;
  std::int64_t first_row = 0;
  Shape divided{};  ///< the argument `tokens` of TensorGroup for `hidden`
};

struct LinearCrossEntropy {
  Tensor loss;    ///< one element: scale * sum of `losses`; f32 (f64 for f64 inputs)
  Tensor losses;  ///< [tokens], unscaled; f32 (f64 for f64 inputs)
};

/// The vocabulary head and its loss: softmax cross-entropy of hidden * table^T. hidden: [..., C];
/// table: [V, C]; targets: one i32 id below V per row of hidden, or no_target.
///
/// When recording, each chunk's backward pass runs right after its forward pass, while its
/// logits exist. This call therefore adds to the gradients of the table and of the bias (leaves)
/// already.
/// backward() must start from this loss, with gradient 1, and must follow every recorded
/// call.
LinearCrossEntropy linear_cross_entropy(const Tensor& hidden, const Tensor& table,
                                        const Tensor& targets,
                                        const LinearCrossEntropyOptions& options);

}  // namespace sluice
