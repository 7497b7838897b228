#include <cmath>

#include "kernels/cuda/attention_dispatch.h"
#include "kernels/cuda/attention_dropout.h"

namespace sluice {
namespace {

using namespace cuda;

constexpr int own_tile = attention_warps * 16;

/// Rows per moving tile: fewer if accumulators or staged tiles need the registers.
template <int D, Staging staging>
constexpr int moving_tile = staging == Staging::async ? (D <= 64 ? 64 : 32)
                                                      : (D <= 32   ? 64
                                                         : D <= 96 ? 32
                                                                   : 16);

template <class T>
struct Arguments {
  T* grad_qkv;
  const T* grad_out;
  const T* qkv;
  const float* log_sum_exp;
  const float* delta;  ///< row sums of grad_out * out
  std::int64_t length;
  std::int64_t channels;
  int heads;
  int width;
  bool packed;
  float scale;
  DropoutMask mask;
  std::int64_t first_mask_row;  ///< first query of first_head in the mask
};

template <class T, int D, Staging staging>
struct Shared {
  static constexpr int stages = staging == Staging::async ? 2 : 1;
  alignas(128) T own[2][own_tile * D];                            ///< Q and dO, or K and V
  alignas(128) T moving[stages][2][moving_tile<D, staging> * D];  ///< K and V, or Q and dO
  alignas(
      16) float log_sum_exp[stages][moving_tile<D, staging>];  ///< of moving queries, times log2(e)
  alignas(16) float delta[stages][moving_tile<D, staging>];
  std::int64_t mask_row;  ///< of the head's first query; saves registers in the loop
};

template <class T, int D, Staging staging, Owner owner>
__global__ void __launch_bounds__(attention_threads) backward(Arguments<T> a) {
  if constexpr (compiled<staging>) {
    constexpr bool own_keys = owner == Owner::keys;
    constexpr int moving_rows = moving_tile<D, staging>;
    using Memory = Shared<T, D, staging>;
    auto& shared = shared_memory<Memory>();
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    const int warp_row = static_cast<int>(threadIdx.x) / warp_size * 16;
    // Long rows run first: the last queries have the most keys, the first keys the most queries.
    const std::int64_t first =
        static_cast<std::int64_t>(own_keys ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * own_tile;
    const std::int64_t sample = blockIdx.z;
    const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * a.width;
    const std::int64_t head_row = static_cast<std::int64_t>(blockIdx.y) * a.length;
    const auto part = [&](int which) {
      return head_rows(a.qkv, sample, a.length, 3 * a.channels, which * a.channels + column,
                       a.width, a.packed);
    };
    const HeadRows<T> queries = part(0), keys = part(1), values = part(2);
    const HeadRows<T> grads =
        head_rows(a.grad_out, sample, a.length, a.channels, column, a.width, a.packed);
    if (threadIdx.x == 0) shared.mask_row = a.first_mask_row + head_row;
    const float* log_sum_exp = a.log_sum_exp + sample * a.heads * a.length + head_row;
    const float* delta = a.delta + sample * a.heads * a.length + head_row;

    // Scores are own[0] times moving[0]; gradients of probabilities are own[1] times moving[1].
    TileCopy<T, own_tile, D, staging> own_copy;
    own_copy.start(shared.own[0], own_keys ? keys : queries, first);
    own_copy.finish(shared.own[0]);
    own_copy.start(shared.own[1], own_keys ? values : grads, first);
    own_copy.finish(shared.own[1]);
    TileCopy<T, moving_rows, D, staging> copies[2];
    float held_statistics[2] = {};
    const auto fetch = [&](int stage, std::int64_t from) {
      copies[0].start(shared.moving[stage][0], own_keys ? queries : keys, from);
      copies[1].start(shared.moving[stage][1], own_keys ? grads : values, from);
      if constexpr (staging == Staging::async) cp_async_commit();
      if (own_keys && static_cast<int>(threadIdx.x) < moving_rows) {
        const std::int64_t row = from + threadIdx.x;
        // Queries beyond the end have probability 0.
        held_statistics[0] = row < a.length ? log_sum_exp[row] * log2_e : INFINITY;
        held_statistics[1] = row < a.length ? delta[row] : 0.0f;
      }
    };
    const auto arrive = [&](int stage) {
      copies[0].finish(shared.moving[stage][0]);
      copies[1].finish(shared.moving[stage][1]);
      if (own_keys && static_cast<int>(threadIdx.x) < moving_rows) {
        shared.log_sum_exp[stage][threadIdx.x] = held_statistics[0];
        shared.delta[stage][threadIdx.x] = held_statistics[1];
      }
    };

    // Loops only over rows on the visible side of the diagonal.
    const std::int64_t end = own_keys || first + own_tile > a.length ? a.length : first + own_tile;
    const std::int64_t start = own_keys ? first / moving_rows * moving_rows : 0;
    const auto tiles = static_cast<int>((end - start + moving_rows - 1) / moving_rows);
    float own_log_sum_exp[2], own_delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = first + warp_row + lane / 4 + 8 * half;
      own_log_sum_exp[half] = !own_keys && row < a.length ? log_sum_exp[row] * log2_e : INFINITY;
      own_delta[half] = !own_keys && row < a.length ? delta[row] : 0.0f;
    }
    const float scale_log2 = a.scale * log2_e;
    const float kept_scale = a.mask.scale();
    float grad_first[1][D / 8][4] = {};                 // dQ or dK
    float grad_value[1][own_keys ? D / 8 : 1][4] = {};  // dV
    fetch(0, start);
    arrive(0);
    for (int tile = 0; tile < tiles; ++tile) {
      const std::int64_t from = start + static_cast<std::int64_t>(tile) * moving_rows;
      const int stage = tile % Memory::stages;
      const bool more = tile + 1 < tiles;
      if (more) fetch((tile + 1) % Memory::stages, from + moving_rows);
      await_stage<staging>(more);
      float p[1][moving_rows / 8][4], grad_p[1][moving_rows / 8][4];
      const auto own = [&](int which) {
        return [&shared, warp_row, which](int, int k, std::uint32_t(&left)[4]) {
          load_left<T, D>(left, shared.own[which], warp_row, k);
        };
      };
      multiply_rows<T, moving_rows, D>(p, shared.moving[stage][0], own(0));
      multiply_rows<T, moving_rows, D>(grad_p, shared.moving[stage][1], own(1));
      KeptScores<moving_rows, own_keys> kept;
      if (a.mask.active()) kept.decide(a.mask, sample, shared.mask_row, first + warp_row, from);
#pragma unroll
      for (int j = 0; j < moving_rows / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int moving = 8 * j + lane % 4 * 2 + i % 2;
          const std::int64_t own_row = first + warp_row + lane / 4 + i / 2 * 8;
          const std::int64_t query = own_keys ? from + moving : own_row;
          const std::int64_t key = own_keys ? own_row : from + moving;
          const float lse = own_keys ? shared.log_sum_exp[stage][moving] : own_log_sum_exp[i / 2];
          const float query_delta = own_keys ? shared.delta[stage][moving] : own_delta[i / 2];
          float probability = key > query ? 0.0f : exp2_fast(p[0][j][i] * scale_log2 - lse);
          float keep = 1.0f;
          if (a.mask.active()) keep = kept(j, i) ? kept_scale : 0.0f;
          grad_p[0][j][i] = probability * (grad_p[0][j][i] * keep - query_delta);
          p[0][j][i] = probability * keep;
        }
      }
      if constexpr (own_keys)
        add_weighted<T, moving_rows, D>(grad_value, p, shared.moving[stage][1]);
      add_weighted<T, moving_rows, D>(grad_first, grad_p, shared.moving[stage][0]);
      __syncthreads();  // the stage may be refilled
      if (more && staging == Staging::registers) arrive(0);
      if (more && staging == Staging::async) arrive((tile + 1) % Memory::stages);
    }

    const std::int64_t left = a.length - first - warp_row;
    const auto store_part = [&](int which, const float(&sums)[D / 8][4], int tile) {
      store_rows<T, D>(a.grad_qkv + (sample * a.length + first + warp_row) * 3 * a.channels +
                           which * a.channels + column,
                       3 * a.channels, static_cast<int>(left < 16 ? left : 16), a.width, a.packed,
                       sums, shared.own[tile], warp_row);
    };
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        grad_first[0][n][i] *= a.scale;
    if constexpr (own_keys) {
      store_part(1, grad_first[0], 0);
      store_part(2, grad_value[0], 1);
    } else {
      store_part(0, grad_first[0], 0);
    }
  }
}

constexpr int delta_warps = 4;

/// delta[b, h, t] = sum over d of grad_out * out, one warp per row.
template <class T>
__global__ void __launch_bounds__(delta_warps* warp_size)
    row_products(float* delta, const T* grad_out, const T* out, std::int64_t tasks,
                 std::int64_t length, int heads, int width) {
  const std::int64_t task =
      static_cast<std::int64_t>(blockIdx.x) * delta_warps + threadIdx.x / warp_size;
  if (task >= tasks) return;
  // The memory layout of rows is [sample, position, head].
  const std::int64_t head = task % heads;
  const std::int64_t position = task / heads % length;
  const std::int64_t sample = task / heads / length;
  float sum = 0;
  for (int d = static_cast<int>(threadIdx.x) % warp_size; d < width; d += warp_size)
    sum += to_float(grad_out[task * width + d]) * to_float(out[task * width + d]);
  sum = warp_sum(sum);
  if (threadIdx.x % warp_size == 0) delta[(sample * heads + head) * length + position] = sum;
}

}  // namespace

void launch_cuda(const AttentionBackward& op, Stream stream) {
  const std::int64_t batch = op.qkv.dim(0);
  const std::int64_t length = op.qkv.dim(1);
  const auto width = static_cast<int>(op.out.dim(2) / op.heads);
  const std::int64_t tasks = batch * length * op.heads;
  auto* delta = workspace<float>(stream, tasks);
  dispatch(op.qkv.dtype, [&]<class T>() {
    launch(row_products<T>, {pieces(tasks, delta_warps)}, {delta_warps * warp_size}, 0, stream,
           delta, op.grad_out.data<T>(), op.out.data<T>(), tasks, length, op.heads, width);
  });
  if (op.qkv.dtype == DType::f32 || width > max_tile_width)
    return attention_plain(op, delta, stream);
  dispatch_tiles(op.qkv.dtype, width, queue_of(stream).capability,
                 [&]<class T, int D, Staging staging>() {
                   const Arguments<T> arguments{
                       .grad_qkv = op.grad_qkv.data<T>(),
                       .grad_out = op.grad_out.data<T>(),
                       .qkv = op.qkv.data<T>(),
                       .log_sum_exp = op.log_sum_exp.data<float>(),
                       .delta = delta,
                       .length = length,
                       .channels = op.out.dim(2),
                       .heads = op.heads,
                       .width = width,
                       .packed = packed_heads(width, {op.qkv, op.grad_out, op.grad_qkv}),
                       .scale = 1.0f / std::sqrt(static_cast<float>(width)),
                       .mask = op.mask,
                       .first_mask_row = op.first_head * op.qkv.dim(1)};
                   const dim3 grid{pieces(length, own_tile), static_cast<unsigned>(op.heads),
                                   static_cast<unsigned>(batch)};
                   constexpr std::size_t bytes = sizeof(Shared<T, D, staging>);
                   launch(backward<T, D, staging, Owner::keys>, grid, {attention_threads}, bytes,
                          stream, arguments);
                   launch(backward<T, D, staging, Owner::queries>, grid, {attention_threads}, bytes,
                          stream, arguments);
                 });
}

}  // namespace sluice
