#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>

#include "kernels/attention.h"
#include "kernels/cuda/attention_products.h"
#include "kernels/cuda/attention_statistics.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {

/// Widest head of the tensor-core kernels. Wider ones than `usual` need compute capability 8.0, and
/// have no dropout.
constexpr int usual_tile_width = 128, max_tile_width = 256;

/// The backward pass recomputes the probabilities from log_sum_exp (Dao, 2023, algorithm 2). Each
/// block owns some rows and loops over tiles of the rows that they interact with: blocks that own
/// queries compute dQ, blocks that own keys compute dK and dV. Every gradient has one writer and is
/// summed in a fixed order, so no atomics are needed and every run gives the same bits. The price
/// is seven matrix products instead of five. Blocks that own queries are launched first, since they
/// compute the statistics that the others read. The sums of wide heads' dK and dV need too many
/// registers for one block: blocks that own keys compute dK, and those that own values dV, for
/// eight products.
enum class Owner { queries, keys, values };

/// Calls `body.operator()<T, D, staging, dropout>()` with the element type, the compiled head width
/// and the staging method that suit the data and the GPU.
template <class Body>
void dispatch_tiles(DType dtype, int width, int capability, bool dropout, Body&& body) {
  const auto with_width = [&]<class T, int D, Staging staging>() {
    if (dropout) return body.template operator()<T, D, staging, true>();
    body.template operator()<T, D, staging, false>();
  };
  const auto wide = [&]<class T>() {
    body.template operator()<T, max_tile_width, Staging::async, false>();
  };
  const auto with_type = [&]<class T, Staging staging>() {
    if (width <= 32) return with_width.template operator()<T, 32, staging>();
    if (width <= 64) return with_width.template operator()<T, 64, staging>();
    if (width <= 96) return with_width.template operator()<T, 96, staging>();
    with_width.template operator()<T, 128, staging>();
  };
  if (dtype == DType::bf16) {
    if (capability < 80)
      fail("bf16 attention needs compute capability 8.0 and this GPU has " +
           std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
           "; use --precision fp16");
    if (width > usual_tile_width) return wide.template operator()<BFloat16>();
    return with_type.template operator()<BFloat16, Staging::async>();
  }
  if (width > usual_tile_width) return wide.template operator()<Half>();
  if (capability < 80) return with_type.template operator()<Half, Staging::registers>();
  with_type.template operator()<Half, Staging::async>();
}

/// The rows of a head of sequence `sample` in a tensor [B, length, stride], from column `column`
/// on.
template <class T>
__device__ __forceinline__ HeadRows<T> head_rows(const T* tensor, std::int64_t sample, int length,
                                                 int stride, std::int64_t column, int width) {
  return {tensor + sample * length * stride + column, stride, length, width};
}

/// The columns at which the heads of k and v begin in a row of q, k and v.
struct HeadColumns {
  int stride;      ///< of the rows
  int key, value;  ///< columns of head 0 of k and of v
  int group;       ///< heads of q that attend to one of k and v
};
inline HeadColumns head_columns(const AttentionHeads& heads, int width) {
  return {heads.in_row() * width, heads.query * width, (heads.query + heads.key_value) * width,
          heads.group()};
}

/// A row tile of a head of a sequence: the work of one thread block.
struct BlockTask {
  int tile;
  int head;
  std::int64_t sample;
};

/// Thread blocks start in the order of their index. All heads' first tiles come first, then all
/// second tiles: with tiles in the order of falling work, short blocks fill the gaps that long ones
/// leave at the end. `group` heads at a time, as many as keep their rows in the L2 cache together.
struct BlockOrder {
  unsigned tiles;      ///< of a head
  unsigned heads;      ///< of a sequence
  unsigned all_heads;  ///< of all sequences
  unsigned group;

  __device__ __forceinline__ BlockTask task() const {
    const unsigned first = blockIdx.x / (group * tiles) * group;
    const unsigned size = all_heads - first < group ? all_heads - first : group;
    const unsigned rest = blockIdx.x - first * tiles;
    const unsigned head = first + rest % size;
    return {static_cast<int>(rest / size), static_cast<int>(head % heads), head / heads};
  }
  dim3 grid() const { return {tiles * all_heads}; }
};

/// The order for tiles of `tile_rows` rows. A group's keys and values, or queries and gradients,
/// fit half of the L2 cache.
inline BlockOrder block_order(Stream stream, std::int64_t sequences, int heads, int length,
                              int width, int tile_rows) {
  constexpr std::int64_t element_bytes = 2;
  const auto l2_bytes = static_cast<std::int64_t>(queue_of(stream).l2_bytes);
  const std::int64_t all_heads = sequences * heads;
  const std::int64_t fitting =
      std::clamp<std::int64_t>(l2_bytes / 2 / (2 * length * width * element_bytes), 1, all_heads);
  // Groups of equal size: behind a last group of few heads most multiprocessors would wait.
  return {pieces(length, tile_rows), static_cast<unsigned>(heads), static_cast<unsigned>(all_heads),
          pieces(all_heads, pieces(all_heads, fitting))};
}

/// True if the tensor-core kernels can compute this: 16-bit heads whose rows can be moved 16 bytes
/// at a time, and that are not too wide.
inline bool fits_tiles(Stream stream, int width, bool dropout, std::initializer_list<View> views) {
  const bool wide = queue_of(stream).capability >= 80 && !dropout;
  return views.begin()->dtype != DType::f32 &&
         width <= (wide ? max_tile_width : usual_tile_width) && width % chunk == 0 &&
         aligned(16, views);
}

// Attention for any width up to 256 and any dtype, in fp32 arithmetic without tensor cores.
void attention_plain(const AttentionForward& op, Stream stream);
void attention_plain(const AttentionBackward& op, PairStatistics* statistics, Stream stream);

}  // namespace sluice::cuda
