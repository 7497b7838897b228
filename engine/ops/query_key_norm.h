#pragma once

#include "engine/tensor.h"
#include "engine/tensor_group.h"
#include "kernels/attention.h"

namespace sluice {

/// RMSNorm of each head of q and of k. qkv: [B, T, columns] with q, k and v side by side, `in_row`
/// heads in all; query_weight, key_weight: [head width]; result: a tensor like qkv, whose v is that
/// of qkv. `group`: ranks that divide the heads; the gradients of the weights are summed over them.
Tensor query_key_norm(const Tensor& qkv, const Tensor& query_weight, const Tensor& key_weight,
                      const AttentionHeads& heads, double epsilon, TensorGroup* group = nullptr);

}  // namespace sluice
