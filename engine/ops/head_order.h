#pragma once

#include "engine/tensor.h"

namespace sluice {

/// Sorts the columns of a fused product from q, k and v of each head to all heads of q, of k and of
/// v (kernels/head_order.h). qkv: [B, T, 3 * heads * head width]; result: a tensor like it.
Tensor in_head_order(const Tensor& qkv, int heads);

}  // namespace sluice
