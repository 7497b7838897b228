#pragma once

#include <string>

#include "kernels/attention.h"
#include "kernels/cuda/attention_products.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {

/// Widest head of the tensor-core kernels; wider heads, and fp32, use the plain kernels.
constexpr int max_tile_width = 128;

/// The backward pass recomputes the probabilities from log_sum_exp (Dao, 2023, algorithm 2). Each
/// block owns some rows and loops over tiles of the rows that they interact with: blocks that own
/// queries compute dQ, blocks that own keys compute dK and dV. Every gradient has one writer and is
/// summed in a fixed order, so no atomics are needed and every run gives the same bits. The price
/// is seven matrix products instead of five.
enum class Owner { queries, keys };

/// Calls `body.operator()<T, D, staging>()` with the element type, the compiled head width and the
/// staging method that suit the data and the GPU.
template <class Body>
void dispatch_tiles(DType dtype, int width, int capability, Body&& body) {
  const auto with_type = [&]<class T, Staging staging>() {
    if (width <= 32) return body.template operator()<T, 32, staging>();
    if (width <= 64) return body.template operator()<T, 64, staging>();
    if (width <= 96) return body.template operator()<T, 96, staging>();
    return body.template operator()<T, 128, staging>();
  };
  if (dtype == DType::bf16) {
    if (capability < 80)
      fail("bf16 attention needs compute capability 8.0 and this GPU has " +
           std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
           "; use --precision fp16");
    return with_type.template operator()<BFloat16, Staging::async>();
  }
  if (capability < 80) return with_type.template operator()<Half, Staging::registers>();
  with_type.template operator()<Half, Staging::async>();
}

/// Rows of head `head` of sequence `sample` in part `part` (0 q, 1 k, 2 v) of qkv, or in another
/// tensor of `channels` columns; `stride` is the row stride of that tensor.
template <class T>
__device__ __forceinline__ HeadRows<T> head_rows(const T* start, std::int64_t sample,
                                                 std::int64_t length, std::int64_t stride,
                                                 std::int64_t column, int width, bool packed) {
  return {start + sample * length * stride + column, stride, length, width, packed};
}

/// True if the rows of all heads can be moved 16 bytes at a time.
inline bool packed_heads(int width, std::initializer_list<View> views) {
  return width % chunk == 0 && aligned(16, views);
}

// Attention for any width up to 256 and any dtype, in fp32 arithmetic without tensor cores.
void attention_plain(const AttentionForward& op, Stream stream);
void attention_plain(const AttentionBackward& op, float* delta, Stream stream);

}  // namespace sluice::cuda
