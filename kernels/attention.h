#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/view.h"
#include "kernels/dropout.h"

namespace sluice {

/// Causal multi-head attention, fused (Dao, "FlashAttention-2", 2023): the T x T matrix is never
/// stored. q, k and v lie side by side in the rows of `qkv`, each [heads * head width].
/// qkv: [B, T, 3*C]; out: [B, T, C]; log_sum_exp: [B, heads, T], f32 (f64 for f64).
/// Scores are scaled by 1/sqrt(C/heads). `mask` drops attention probabilities: the one of key k for
/// query q of head h uses word k % 4 of counter (k / 4) | (h * T + q) << 24 of its sample. h counts
/// from first_head, so a rank that has some of a model's heads drops what one with all heads does.
struct AttentionForward {
  View out;
  View log_sum_exp;
  View qkv;
  int heads = 1;
  DropoutMask mask{};
  int first_head = 0;  ///< index of head 0 in the whole model; only the mask uses it
  /// Asks for the kernel with wgmma and TMA, whose sums have another order. A GPU of compute
  /// capability 9.0 has it, for 16-bit heads of at most 128 in multiples of 8 without dropout.
  bool wgmma = false;
};
void launch_cpu(const AttentionForward& op);
void launch_cuda(const AttentionForward& op, Stream stream);

/// grad_qkv: [B, T, 3*C], overwritten as a whole. Everything else is as in the forward pass.
struct AttentionBackward {
  View grad_qkv;
  View grad_out;
  View out;
  View log_sum_exp;
  View qkv;
  int heads = 1;
  DropoutMask mask{};
  int first_head = 0;  ///< index of head 0 in the whole model; only the mask uses it
};
void launch_cpu(const AttentionBackward& op);
void launch_cuda(const AttentionBackward& op, Stream stream);

/// Attention of new positions over a KV cache, for generation. Appends the keys and values of `qkv`
/// [B, t, 3*C] to the caches [B, capacity, C] at position `start`. Position start+i then attends to
/// positions 0..start+i. out: [B, t, C].
struct CachedAttention {
  View out;
  View key_cache;
  View value_cache;
  View qkv;
  std::int64_t start = 0;
  int heads = 1;
};
void launch_cpu(const CachedAttention& op);
void launch_cuda(const CachedAttention& op, Stream stream);

}  // namespace sluice
