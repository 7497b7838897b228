#include "kernels/attention.h"

#include <cmath>

#include "kernels/cuda/attention_dispatch.h"
#include "kernels/cuda/attention_dropout.h"
#include "kernels/cuda/attention_softmax.h"
#include "kernels/cuda/attention_wgmma.h"

namespace sluice {
namespace {

using namespace cuda;

/// Keys per tile: fewer if staged tiles need the registers, or wide ones the shared memory.
template <int D, Staging staging>
constexpr int key_tile_of = (staging == Staging::registers && D > 64) || D > 128 ? 32 : 64;

/// 16-row groups per warp: two share the loaded K and V if there are enough registers.
template <int D, Staging staging>
constexpr int groups_of = D <= 64 && staging == Staging::async ? 2 : 1;
template <int D, Staging staging>
constexpr int query_tile = attention_warps * 16 * groups_of<D, staging>;

template <class T>
struct Arguments {
  BlockOrder order;
  T* out;
  float* log_sum_exp;
  const T* qkv;
  int length;
  int channels;
  HeadColumns columns;
  int width;
  float scale_log2;  ///< 1/sqrt(width) * log2(e): powers of two are cheaper
  DropoutMask mask;
  std::int64_t first_mask_row;  ///< first query of first_head in the mask
};

template <class T, int D, Staging staging>
struct Shared {
  static constexpr int stages = staging == Staging::async ? 2 : 1;
  static constexpr int key_tile = key_tile_of<D, staging>;
  alignas(128) T query[1][query_tile<D, staging> * D];
  alignas(128) T keys_values[stages][2][key_tile * D];
};

/// A block has a tile of queries, which stay in registers if there are enough, and loops over tiles
/// of keys and values up to the diagonal.
template <class T, int D, Staging staging, bool dropout>
__global__ void __launch_bounds__(attention_threads) forward(Arguments<T> a) {
  if constexpr (compiled<staging>) {
    constexpr int groups = groups_of<D, staging>;
    constexpr int key_tile = key_tile_of<D, staging>;
    constexpr int rows = query_tile<D, staging>;
    using Memory = Shared<T, D, staging>;
    auto& shared = shared_memory<Memory>();
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    const int warp = static_cast<int>(threadIdx.x) / warp_size;
    const BlockTask task = a.order.task();
    // The last tile attends to the most keys and is the first to run.
    const int first = (static_cast<int>(a.order.tiles) - 1 - task.tile) * rows;
    const std::int64_t column = static_cast<std::int64_t>(task.head) * a.width;
    const auto rows_at = [&](int first_column) {
      return head_rows(a.qkv, task.sample, a.length, a.columns.stride, first_column, a.width);
    };
    const int key_value = task.head / a.columns.group;

    TileCopy<T, rows, D, staging, 1> query_copy({rows_at(task.head * a.width)}, first);
    query_copy.start(shared.query);
    query_copy.finish(shared.query);
    TileCopy<T, key_tile, D, staging, 2> copy({rows_at(a.columns.key + key_value * a.width),
                                               rows_at(a.columns.value + key_value * a.width)},
                                              0);
    const auto fetch = [&](int stage) {
      copy.start(shared.keys_values[stage]);
      if constexpr (staging == Staging::async) cp_async_commit();
    };
    const auto arrive = [&](int stage) { copy.finish(shared.keys_values[stage]); };
    fetch(0);
    arrive(0);

    const int end = first + rows < a.length ? first + rows : a.length;
    const int tiles = (end + key_tile - 1) / key_tile;
    const int warp_row = warp * 16 * groups;
    constexpr bool keep_query = D <= 128;
    LeftOperand query[keep_query ? groups : 1][D / 16];
    const auto queries = straight_blocks<T, D>(shared.query[0] + warp_row * D);
    float out[groups][D / 8][4] = {};
    Softmax<groups, key_tile> softmax;
#pragma unroll dropout ? 1 : Memory::stages  // unrolled, addresses of a stage are constants
    for (int tile = 0; tile < tiles; ++tile) {
      const int first_key = tile * key_tile;
      const int stage = tile % Memory::stages;
      const bool more = tile + 1 < tiles;
      if (more) fetch((tile + 1) % Memory::stages);
      await_stage<staging>(more);
      if (keep_query && tile == 0) {
#pragma unroll
        for (int m = 0; m < groups; ++m)
#pragma unroll
          for (int k = 0; k < D / 16; ++k)
            query[m][k] = load_left(queries, m, k);
      }
      float scores[groups][key_tile / 8][4];
      multiply_rows<T, key_tile, D>(
          scores, transposed_blocks<T, D>(shared.keys_values[stage][0]),
          [&](int m, int k) { return keep_query ? query[m][k] : load_left(queries, m, k); },
          [](int, int) { return Accumulators{}; });
      // Only tiles on the diagonal have keys that some of the queries must not see.
      if (first_key + key_tile > first) {
#pragma unroll
        for (int m = 0; m < groups; ++m)
#pragma unroll
          for (int j = 0; j < key_tile / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int row = first + warp_row + 16 * m + lane / 4 + i / 2 * 8;
              const int key = first_key + 8 * j + lane % 4 * 2 + i % 2;
              if (key > row) scores[m][j][i] = -INFINITY;
            }
      }
      float shrink[groups][2];
      softmax.absorb(scores, shrink, a.scale_log2);
      scale_rows(out, shrink);
      if constexpr (dropout) {
        const std::int64_t mask_row =
            a.first_mask_row + static_cast<std::int64_t>(task.head) * a.length;
        const float kept_scale = a.mask.scale();
#pragma unroll
        for (int m = 0; m < groups; ++m) {
          KeptScores<key_tile, false> kept;
          kept.decide(a.mask, task.sample, mask_row, first + warp_row + 16 * m, first_key);
#pragma unroll
          for (int j = 0; j < key_tile / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              scores[m][j][i] = kept(j, i) ? scores[m][j][i] * kept_scale : 0.0f;
        }
      }
      add_weighted<T, key_tile, D>(out, scores,
                                   straight_blocks<T, D>(shared.keys_values[stage][1]));
      __syncthreads();  // the stage may be refilled
      if (staging == Staging::registers && more) arrive(0);
    }

    softmax.finish(out, a.log_sum_exp + (task.sample * a.order.heads + task.head) * a.length,
                   first + warp_row, a.length, a.scale_log2);
#pragma unroll
    for (int m = 0; m < groups; ++m) {
      const int row = first + warp_row + 16 * m;
      store_rows<T, D>(a.out + (task.sample * a.length + row) * a.channels + column, a.channels,
                       a.length - row, a.width, out[m], shared.query[0], warp_row + 16 * m);
    }
  }
}

}  // namespace

void launch_cuda(const AttentionForward& op, Stream stream) {
  const auto length = static_cast<int>(op.qkv.dim(1));
  const auto width = static_cast<int>(op.out.dim(2) / op.heads.query);
  if (!fits_tiles(stream, width, op.mask.active(), {op.qkv, op.out}))
    return attention_plain(op, stream);
  if (op.wgmma && width <= usual_tile_width && has_attention_wgmma(queue_of(stream).capability) &&
      !op.mask.active())
    return attention_wgmma(op, stream);
  dispatch_tiles(op.qkv.dtype, width, queue_of(stream).capability, op.mask.active(),
                 [&]<class T, int D, Staging staging, bool dropout>() {
                   const Arguments<T> arguments{
                       .order = block_order(stream, op.qkv.dim(0), op.heads.query, length, width,
                                            query_tile<D, staging>),
                       .out = op.out.data<T>(),
                       .log_sum_exp = op.log_sum_exp.data<float>(),
                       .qkv = op.qkv.data<T>(),
                       .length = length,
                       .channels = static_cast<int>(op.out.dim(2)),
                       .columns = head_columns(op.heads, width),
                       .width = width,
                       .scale_log2 = log2_e / std::sqrt(static_cast<float>(width)),
                       .mask = op.mask,
                       .first_mask_row = std::int64_t{op.first_head} * length};
                   launch(forward<T, D, staging, dropout>, arguments.order.grid(),
                          {attention_threads}, sizeof(Shared<T, D, staging>), stream, arguments);
                 });
}

}  // namespace sluice
