#pragma once

#include <cstdint>

#include "engine/tensor.h"
#include "kernels/dropout.h"

namespace sluice {

/// Causal multi-head attention. qkv: [B, T, 3*C] with q, k, v side by side; result: [B, T, C]. C
/// must be a multiple of `heads`. `mask` drops attention probabilities. It is numbered by the heads
/// of the whole model, of which these are the ones from `first_head` on.
Tensor attention(const Tensor& qkv, int heads, const DropoutMask& mask = {}, int first_head = 0);

/// Attention of the positions start .. start+t-1 over a cache that keeps all earlier keys and
/// values. key_cache, value_cache: [B, capacity, C]. Used for generation; records no graph.
Tensor cached_attention(const Tensor& qkv, const Tensor& key_cache, const Tensor& value_cache,
                        std::int64_t start, int heads);

}  // namespace sluice
