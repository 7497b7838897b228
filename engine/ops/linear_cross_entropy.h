#pragma once

#include <cstdint>

#include "engine/tensor.h"
#include "engine/tensor_group.h"

namespace sluice {

struct LinearCrossEntropyOptions {
  /// Multiplies every token's loss: 1 / (tokens of the whole update), so that accumulation and
  /// ranks add up to a mean without a further pass.
  double scale = 1;
  /// Multiplies the gradients further, not the loss: keeps small ones from vanishing in f16
  /// (Micikevicius et al., "Mixed precision training", 2018, section 3.2).
  double loss_scale = 1;
  /// Tokens whose logits exist at one time.
  std::int64_t chunk = 1024;
  /// Ranks that divide the vocabulary: the table begins with its row `first_row`. No rank has the
  /// logits of all; the parts of the gradient of `hidden` are added up.
  TensorGroup* group = nullptr;
  std::int64_t first_row = 0;
  Shape divided{};  ///< `tokens` of hidden; see TensorGroup
};

struct LinearCrossEntropy {
  Tensor loss;    ///< one element: scale * sum of the tokens' losses, f32 (f64)
  Tensor losses;  ///< [tokens], unscaled, f32 (f64)
};

/// The vocabulary head and its loss: softmax cross-entropy of hidden * table^T. hidden: [..., C];
/// table: [V, C]; targets: as many i32 ids as hidden has rows, each below V.
///
/// When recording, each chunk's backward pass runs at once after its forward pass, while its
/// logits are there: the gradient of the table (a leaf) is added in this call already, so the
/// result must be what backward() starts from, with gradient 1, and every recorded call must be
/// followed by it.
LinearCrossEntropy linear_cross_entropy(const Tensor& hidden, const Tensor& table,
                                        const Tensor& targets,
                                        const LinearCrossEntropyOptions& options);

}  // namespace sluice
