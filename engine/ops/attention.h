#pragma once

#include <cstdint>

#include "engine/documents.h"
#include "engine/tensor.h"
#include "kernels/attention.h"
#include "kernels/dropout.h"
#include "kernels/rotary.h"

namespace sluice {

struct AttentionOptions {
  AttentionHeads heads{};
  /// Rotates q and k by their positions first, if given. It must outlive the graph.
  const RotaryAngles* rotary = nullptr;
  /// Drops attention probabilities. It is numbered by the query heads of the whole model, of which
  /// these are the ones from `first_head` on.
  DropoutMask mask{};
  int first_head = 0;
  Documents documents{};
};

/// Causal multi-head attention. qkv: [B, T, columns] with q, k and v side by side, `in_row` heads
/// in all; result: [B, T, C] with C = query heads * head width. Rotary positions are applied in
/// `qkv` itself, which nothing else may read then.
Tensor attention(const Tensor& qkv, const AttentionOptions& options);

/// Attention of the positions start .. start+t-1 over a cache that keeps all earlier keys and
/// values. key_cache, value_cache: [B, capacity, key_value heads * head width]. Used for
/// generation; records no graph, and drops nothing.
Tensor cached_attention(const Tensor& qkv, const Tensor& key_cache, const Tensor& value_cache,
                        std::int64_t start, const AttentionOptions& options);

}  // namespace sluice
