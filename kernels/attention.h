#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/view.h"
#include "kernels/dropout.h"

namespace sluice {

/// The heads of q, and those of k and v. Query head h attends to head h / group() of k and v
/// (Ainslie et al., "GQA", 2023).
struct AttentionHeads {
  int query = 1;
  int key_value = 1;  ///< divides `query`

  AttentionHeads() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): one number where all are alike
  AttentionHeads(int all) : query(all), key_value(all) {}
  AttentionHeads(int of_query, int of_key_value) : query(of_query), key_value(of_key_value) {}

  int group() const { return query / key_value; }
  /// Heads in a row of q, k and v.
  int in_row() const { return query + 2 * key_value; }
};

/// Causal multi-head attention, fused (Dao, "FlashAttention-2", 2023): the T x T matrix is never
/// stored. q, k and v lie side by side in the rows of `qkv`, their heads one after the other.
/// qkv: [B, T, in_row * head width]; out: [B, T, C] with C = query heads * head width;
/// log_sum_exp: [B, query heads, T], f32 (f64 for f64).
/// Scores are scaled by 1/sqrt(head width). `mask` drops attention probabilities: the one of key k
/// for query q of head h uses word k % 4 of counter (k / 4) | (h * T + q) << 24 of its sample. h
/// counts from first_head, so a rank that has some of a model's heads drops what one with all heads
/// does.
struct AttentionForward {
  View out;
  View log_sum_exp;
  View qkv;
  AttentionHeads heads{};
  DropoutMask mask{};
  int first_head = 0;  ///< index of head 0 in the whole model; only the mask uses it
  /// Asks for the kernel with wgmma and TMA, whose sums have another order. A GPU of compute
  /// capability 9.0 has it, for 16-bit heads of at most 128 in multiples of 8 without dropout.
  bool wgmma = false;
};
void launch_cpu(const AttentionForward& op);
void launch_cuda(const AttentionForward& op, Stream stream);

/// grad_qkv has the shape of qkv and is overwritten as a whole. Everything else is as in the
/// forward pass.
struct AttentionBackward {
  View grad_qkv;
  View grad_out;
  View out;
  View log_sum_exp;
  View qkv;
  AttentionHeads heads{};
  DropoutMask mask{};
  int first_head = 0;  ///< index of head 0 in the whole model; only the mask uses it
};
void launch_cpu(const AttentionBackward& op);
void launch_cuda(const AttentionBackward& op, Stream stream);

/// Attention of new positions over a KV cache, for generation. Appends the keys and values of `qkv`
/// [B, t, in_row * head width] to the caches [B, capacity, key_value heads * head width] at
/// position `start`. Position start+i then attends to positions 0..start+i. out: [B, t, C].
struct CachedAttention {
  View out;
  View key_cache;
  View value_cache;
  View qkv;
  std::int64_t start = 0;
  AttentionHeads heads{};
};
void launch_cpu(const CachedAttention& op);
void launch_cuda(const CachedAttention& op, Stream stream);

}  // namespace sluice
