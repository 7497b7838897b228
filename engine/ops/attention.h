#pragma once

#include <cstdint>
#include <span>

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

/// Keys and values of a sequence: [1, capacity, key_value heads * head width], of which the first
/// `start` positions are filled.
struct AttentionCache {
  Tensor keys, values;
  std::int64_t start = 0;
};

/// Attention of new positions over caches that keep all earlier keys and values, one for each
/// sequence. Adds the new ones. Used for generation; records no graph, and drops nothing.
Tensor cached_attention(const Tensor& qkv, std::span<const AttentionCache> caches,
                        const AttentionOptions& options);

}  // namespace sluice
