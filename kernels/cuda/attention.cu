#include "kernels/attention.h"

#include <cmath>

#include "kernels/cuda/attention_dispatch.h"
#include "kernels/cuda/attention_dropout.h"

namespace sluice {
namespace {

using namespace cuda;

/// Keys per tile.
template <int D, Staging staging>
constexpr int key_tile_of = (staging == Staging::registers) && D > 64 ? 32 : 64;

/// 16-row groups per warp: two share the loaded K and V if there are enough registers.
template <int D, Staging staging>
constexpr int groups_of = D <= 64 && staging == Staging::async ? 2 : 1;
template <int D, Staging staging>
constexpr int query_tile = attention_warps * 16 * groups_of<D, staging>;

template <class T>
struct Arguments {
  T* out;
  float* log_sum_exp;
  const T* qkv;
  std::int64_t length;
  std::int64_t channels;
  int heads;
  int width;
  bool packed;
  float scale_log2;  ///< 1/sqrt(width) * log2(e): powers of two are cheaper
  DropoutMask mask;
  std::int64_t first_mask_row;  ///< first query of first_head in the mask
};

template <class T, int D, Staging staging>
struct Shared {
  static constexpr int stages = staging == Staging::async ? 2 : 1;
  static constexpr int key_tile = key_tile_of<D, staging>;
  alignas(128) T query[query_tile<D, staging> * D];
  alignas(128) T key[stages][key_tile * D];
  alignas(128) T value[stages][key_tile * D];
};

/// Turns scores of one key tile into probabilities relative to a running maximum (Dao,
/// "FlashAttention-2", 2023, algorithm 1), and scales the sums so far when the maximum rises. A
/// thread has two rows of each group; a row is spread over four lanes.
template <int D, Staging staging>
struct Softmax {
  static constexpr int groups = groups_of<D, staging>;
  static constexpr int key_tile = key_tile_of<D, staging>;
  float top[groups][2];
  float sum[groups][2];

  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int m = 0; m < groups; ++m) {
      top[m][0] = top[m][1] = -INFINITY;
      sum[m][0] = sum[m][1] = 0;
    }
  }

  __device__ __forceinline__ void absorb(float (&scores)[groups][key_tile / 8][4],
                                         float (&out)[groups][D / 8][4], float scale_log2) {
#pragma unroll
    for (int m = 0; m < groups; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float highest = top[m][half];
#pragma unroll
        for (int j = 0; j < key_tile / 8; ++j)
          highest = maximum(highest, maximum(scores[m][j][2 * half], scores[m][j][2 * half + 1]));
        highest = maximum(highest, shuffle_xor(highest, 1));
        highest = maximum(highest, shuffle_xor(highest, 2));
        const float shrink = exp2_fast((top[m][half] - highest) * scale_log2);
        top[m][half] = highest;
        float total = 0;
#pragma unroll
        for (int j = 0; j < key_tile / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& score = scores[m][j][2 * half + i];
            score = exp2_fast((score - highest) * scale_log2);
            total += score;
          }
        }
        sum[m][half] = sum[m][half] * shrink + total;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          out[m][n][2 * half] *= shrink;
          out[m][n][2 * half + 1] *= shrink;
        }
      }
    }
  }
};

/// Block (query tile, head, sequence). The queries stay in registers; the block loops over tiles of
/// keys and values up to the diagonal.
template <class T, int D, Staging staging>
__global__ void __launch_bounds__(attention_threads) forward(Arguments<T> a) {
  if constexpr (compiled<staging>) {
    constexpr int groups = groups_of<D, staging>;
    constexpr int key_tile = key_tile_of<D, staging>;
    using Memory = Shared<T, D, staging>;
    auto& shared = shared_memory<Memory>();
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    const int warp = static_cast<int>(threadIdx.x) / warp_size;
    // Long rows run first: the last tile attends to the most keys.
    const std::int64_t first =
        static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * query_tile<D, staging>;
    const std::int64_t sample = blockIdx.z;
    const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * a.width;
    const auto part = [&](int which) {
      return head_rows(a.qkv, sample, a.length, 3 * a.channels, which * a.channels + column,
                       a.width, a.packed);
    };
    const HeadRows<T> queries = part(0), keys = part(1), values = part(2);

    TileCopy<T, query_tile<D, staging>, D, staging> query_copy;
    TileCopy<T, key_tile, D, staging> key_copy, value_copy;
    query_copy.start(shared.query, queries, first);
    query_copy.finish(shared.query);
    const auto fetch = [&](int stage, std::int64_t from) {
      key_copy.start(shared.key[stage], keys, from);
      value_copy.start(shared.value[stage], values, from);
      if constexpr (staging == Staging::async) cp_async_commit();
    };
    const auto arrive = [&](int stage) {
      key_copy.finish(shared.key[stage]);
      value_copy.finish(shared.value[stage]);
    };
    fetch(0, 0);
    arrive(0);

    const std::int64_t end =
        first + query_tile<D, staging> < a.length ? first + query_tile<D, staging> : a.length;
    const auto tiles = static_cast<int>((end + key_tile - 1) / key_tile);
    const int warp_row = warp * 16 * groups;
    std::uint32_t query[groups][D / 16][4];
    float out[groups][D / 8][4] = {};
    Softmax<D, staging> softmax;
    for (int tile = 0; tile < tiles; ++tile) {
      const std::int64_t first_key = static_cast<std::int64_t>(tile) * key_tile;
      const int stage = tile % Memory::stages;
      const bool more = tile + 1 < tiles;
      if (more) fetch((tile + 1) % Memory::stages, first_key + key_tile);
      await_stage<staging>(more);
      if (tile == 0) {
#pragma unroll
        for (int m = 0; m < groups; ++m)
#pragma unroll
          for (int k = 0; k < D / 16; ++k)
            load_left<T, D>(query[m][k], shared.query, warp_row + 16 * m, k);
      }
      float scores[groups][key_tile / 8][4];
      multiply_rows<T, key_tile, D>(scores, shared.key[stage],
                                    [&](int m, int k, std::uint32_t(&left)[4]) {
#pragma unroll
                                      for (int i = 0; i < 4; ++i)
                                        left[i] = query[m][k][i];
                                    });
      // Calls visit(m, j, i, query, key) for every score of this thread.
      const auto each_score = [&](auto&& visit) {
#pragma unroll
        for (int m = 0; m < groups; ++m)
#pragma unroll
          for (int j = 0; j < key_tile / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              visit(scores[m][j][i], first + warp_row + 16 * m + lane / 4 + i / 2 * 8,
                    first_key + 8 * j + lane % 4 * 2 + i % 2);
      };
      // Only tiles on the diagonal have keys that some of the queries must not see.
      if (first_key + key_tile > first)
        each_score([](float& score, std::int64_t row, std::int64_t key) {
          if (key > row) score = -INFINITY;
        });
      softmax.absorb(scores, out, a.scale_log2);
      if (a.mask.active()) {
        const std::int64_t mask_row =
            a.first_mask_row + static_cast<std::int64_t>(blockIdx.y) * a.length;
        const float kept_scale = a.mask.scale();
#pragma unroll
        for (int m = 0; m < groups; ++m) {
          KeptScores<key_tile, false> kept;
          kept.decide(a.mask, sample, mask_row, first + warp_row + 16 * m, first_key);
#pragma unroll
          for (int j = 0; j < key_tile / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              scores[m][j][i] = kept(j, i) ? scores[m][j][i] * kept_scale : 0.0f;
        }
      }
      add_weighted<T, key_tile, D>(out, scores, shared.value[stage]);
      __syncthreads();  // the stage may be refilled
      if (staging == Staging::registers && more) arrive(0);
    }

#pragma unroll
    for (int m = 0; m < groups; ++m) {
      const std::int64_t row = first + warp_row + 16 * m;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float total = softmax.sum[m][half];
        total += shuffle_xor(total, 1);
        total += shuffle_xor(total, 2);
        const float inverse = 1.0f / total;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          out[m][n][2 * half] *= inverse;
          out[m][n][2 * half + 1] *= inverse;
        }
        const std::int64_t mine = row + lane / 4 + 8 * half;
        if (lane % 4 == 0 && mine < a.length)
          a.log_sum_exp[(sample * a.heads + blockIdx.y) * a.length + mine] =
              (softmax.top[m][half] * a.scale_log2) * ln_2 + logf(total);
      }
      const std::int64_t left = a.length - row;
      store_rows<T, D>(a.out + (sample * a.length + row) * a.channels + column, a.channels,
                       static_cast<int>(left < 16 ? left : 16), a.width, a.packed, out[m],
                       shared.query, warp_row + 16 * m);
    }
  }
}

}  // namespace

void launch_cuda(const AttentionForward& op, Stream stream) {
  const std::int64_t batch = op.qkv.dim(0);
  const std::int64_t length = op.qkv.dim(1);
  const auto width = static_cast<int>(op.out.dim(2) / op.heads);
  if (op.qkv.dtype == DType::f32 || width > max_tile_width) return attention_plain(op, stream);
  dispatch_tiles(
      op.qkv.dtype, width, queue_of(stream).capability, [&]<class T, int D, Staging staging>() {
        const Arguments<T> arguments{.out = op.out.data<T>(),
                                     .log_sum_exp = op.log_sum_exp.data<float>(),
                                     .qkv = op.qkv.data<T>(),
                                     .length = length,
                                     .channels = op.out.dim(2),
                                     .heads = op.heads,
                                     .width = width,
                                     .packed = packed_heads(width, {op.qkv, op.out}),
                                     .scale_log2 = log2_e / std::sqrt(static_cast<float>(width)),
                                     .mask = op.mask,
                                     .first_mask_row = op.first_head * length};
        launch(forward<T, D, staging>,
               {pieces(length, query_tile<D, staging>), static_cast<unsigned>(op.heads),
                static_cast<unsigned>(batch)},
               {attention_threads}, sizeof(Shared<T, D, staging>), stream, arguments);
      });
}

}  // namespace sluice
