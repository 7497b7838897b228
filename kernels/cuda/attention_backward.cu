#include <cmath>

#include "kernels/cuda/attention_dispatch.h"
#include "kernels/cuda/attention_dropout.h"
#include "kernels/cuda/attention_statistics.h"

namespace sluice {
namespace {

using namespace cuda;

/// 16-row groups per warp: two share what is loaded of the moving rows if there are enough
/// registers. Random numbers of dropout need some.
template <int D, Staging staging, bool dropout>
constexpr int groups_of = D <= 64 && staging == Staging::async && !dropout ? 2 : 1;
template <int D, Staging staging, bool dropout>
constexpr int own_tile_of = attention_warps * 16 * groups_of<D, staging, dropout>;

/// Rows per moving tile: fewer if accumulators or staged tiles need the registers, or wide tiles
/// the shared memory.
template <int D, Staging staging>
constexpr int moving_tile = D > 128                     ? 16
                            : staging == Staging::async ? 32
                            : D <= 32                   ? 64
                            : D <= 96                   ? 32
                                                        : 16;

/// True if the sums of dK and dV do not fit the registers of one block.
template <int D>
constexpr bool wide_head = D > 128;

template <class T>
struct Arguments {
  BlockOrder order;
  T* grad_qkv;
  const T* grad_out;
  const T* out;
  const T* qkv;
  const float* log_sum_exp;
  PairStatistics* statistics;
  int length;
  int channels;
  HeadColumns columns;
  int width;
  float scale;
  DropoutMask mask;
  std::int64_t first_mask_row;  ///< first query of first_head in the mask
};

template <class T, int D, Staging staging, bool dropout>
struct Shared {
  static constexpr int stages = staging == Staging::async ? 2 : 1;
  static constexpr int moving_rows = moving_tile<D, staging>;
  alignas(128) T own[2][own_tile_of<D, staging, dropout> * D];  ///< Q and dO, or K and V
  alignas(128) T moving[stages][2][moving_rows * D];            ///< K and V, or Q and dO
  PairStatistics statistics[stages][moving_rows / 2];           ///< of moving queries
};

/// `grouped`: blocks that own keys go through the heads of q that share them, one after the other.
/// The loop would only cost registers if each head of k and v has one query head.
template <class T, int D, Staging staging, bool dropout, Owner owner, bool grouped>
__global__ void __launch_bounds__(attention_threads) backward(Arguments<T> a) {
  if constexpr (compiled<staging>) {
    constexpr bool own_keys = owner != Owner::queries;
    constexpr bool gives_first = owner != Owner::values;  // dQ or dK
    constexpr bool gives_value = owner == Owner::values || (owner == Owner::keys && !wide_head<D>);
    constexpr int groups = groups_of<D, staging, dropout>;
    constexpr int own_tile = own_tile_of<D, staging, dropout>;
    constexpr int moving_rows = moving_tile<D, staging>;
    using Memory = Shared<T, D, staging, dropout>;
    auto& shared = shared_memory<Memory>();
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    const int warp_row = static_cast<int>(threadIdx.x) / warp_size * 16 * groups;
    const BlockTask task = a.order.task();
    // Long rows run first: the last queries have the most keys, the first keys the most queries.
    const int first =
        (own_keys ? task.tile : static_cast<int>(a.order.tiles) - 1 - task.tile) * own_tile;
    const int group = own_keys && grouped ? a.columns.group : 1;
    const int key_value = own_keys ? task.head : task.head / a.columns.group;
    const int key_column = a.columns.key + key_value * a.width;
    const int value_column = a.columns.value + key_value * a.width;
    const auto rows_at = [&](int column) {
      return head_rows(a.qkv, task.sample, a.length, a.columns.stride, column, a.width);
    };
    const auto out_rows = [&](const T* tensor, int head) {
      return head_rows(tensor, task.sample, a.length, a.channels, head * a.width, a.width);
    };
    const auto sequence_of = [&](int head) {
      return task.sample * (a.order.heads * static_cast<unsigned>(group)) + head;
    };
    const auto statistics_of = [&](int head) {
      return a.statistics + sequence_of(head) * statistics_rows(a.length) / 2;
    };

    // Loops only over rows on the visible side of the diagonal.
    const int end = own_keys || first + own_tile > a.length ? a.length : first + own_tile;
    const int start = own_keys ? first : 0;
    const int tiles = (end - start + moving_rows - 1) / moving_rows;
    // Scores are own[0] times moving[0]; gradients of probabilities are own[1] times moving[1].
    const HeadRows<T> keys = rows_at(key_column), values = rows_at(value_column);
    TileCopy<T, own_tile, D, staging, 2> own_copy(
        {own_keys ? keys : rows_at(task.head * a.width),
         own_keys ? values : out_rows(a.grad_out, task.head)},
        first);
    own_copy.start(shared.own);
    if constexpr (staging == Staging::async) cp_async_commit();
    own_copy.finish(shared.own);
    // Blocks that own queries leave their statistics for the blocks that own keys.
    if constexpr (!own_keys)
      write_statistics<T, D, own_tile, staging>(
          statistics_of(task.head), out_rows(a.grad_out, task.head), out_rows(a.out, task.head),
          a.log_sum_exp + sequence_of(task.head) * a.length, first);
    const float scale_log2 = a.scale * log2_e;
    float grad_first[groups][gives_first ? D / 8 : 1][4] = {};
    float grad_value[groups][gives_value ? D / 8 : 1][4] = {};
    const auto own = straight_blocks<T, D>(shared.own[0] + warp_row * D);

    for (int member = 0; member < group; ++member) {
      const int head = task.head * group + member;
      PairStatistics* const statistics = statistics_of(head);
      TileCopy<T, moving_rows, D, staging, 2> copy({own_keys ? rows_at(head * a.width) : keys,
                                                    own_keys ? out_rows(a.grad_out, head) : values},
                                                   start);
      StatisticsCopy<moving_rows, staging> statistics_copy(statistics + start / 2);
      const auto fetch = [&](int stage) {
        copy.start(shared.moving[stage]);
        if (own_keys) statistics_copy.start(shared.statistics[stage]);
        if constexpr (staging == Staging::async) cp_async_commit();
      };
      const auto arrive = [&](int stage) {
        copy.finish(shared.moving[stage]);
        if (own_keys) statistics_copy.finish(shared.statistics[stage]);
      };

      // A block that owns queries keeps the statistics of its accumulators' rows in registers.
      if constexpr (!own_keys) __syncthreads();
      float own_log_sum_exp[groups][2];
      Accumulators own_minus_delta[groups];
#pragma unroll
      for (int m = 0; m < groups; ++m)
#pragma unroll
        for (int half = 0; half < 2 && !own_keys; ++half) {
          const int row = first + warp_row + 16 * m + lane / 4 + 8 * half;
          const PairStatistics& mine = statistics[row / 2];
          own_log_sum_exp[m][half] = mine.log_sum_exp[row % 2];
          // Two loads of one value: from copies of one register the compiler would build four
          // neighbouring registers anew in every tile.
          own_minus_delta[m].values[2 * half] = mine.minus_delta.values[row % 2];
          own_minus_delta[m].values[2 * half + 1] = mine.minus_delta.values[row % 2 + 2];
        }
      fetch(0);
      arrive(0);
      // Blocks that own keys have no registers left to keep these.
      constexpr bool keep_own = !own_keys && groups == 2;
      LeftOperand kept_own[keep_own ? groups : 1][D / 16];
      if constexpr (keep_own) {
        await_stage<staging>(true);
#pragma unroll
        for (int m = 0; m < groups; ++m)
#pragma unroll
          for (int k = 0; k < D / 16; ++k)
            kept_own[m][k] = load_left(own, m, k);
      }
      const auto scored = [&](int m, int k) {
        if constexpr (keep_own) return kept_own[m][k];
        return load_left(own, m, k);
      };
#pragma unroll dropout ? 1 : Memory::stages  // unrolled, addresses of a stage are constants
      for (int tile = 0; tile < tiles; ++tile) {
        const int stage = tile % Memory::stages;
        const bool more = tile + 1 < tiles;
        if (more) fetch((tile + 1) % Memory::stages);
        await_stage<staging>(more);
        constexpr int own_bytes = sizeof(shared.own[0]);
        constexpr int moving_bytes = sizeof(shared.moving[0][0]);
        const auto transposed =
            transposed_blocks<T, D>(shared.moving[0][0]).behind(stage * 2 * moving_bytes);
        const auto straight = straight_blocks<T, D>(shared.moving[stage][0]);
        // An accumulator takes the statistics of its column if queries move, else those of its row.
        const auto log_sum_exp = [&](int m, int j, int i) {
          if constexpr (own_keys)
            return shared.statistics[stage][4 * j + lane % 4].log_sum_exp[i % 2];
          return own_log_sum_exp[m][i / 2];
        };
        const auto minus_delta = [&](int m, int j) {
          if constexpr (own_keys) return shared.statistics[stage][4 * j + lane % 4].minus_delta;
          return own_minus_delta[m];
        };
        // Calls visit(m, j, i) for every score of this thread.
        const auto each_score = [](auto&& visit) {
#pragma unroll
          for (int m = 0; m < groups; ++m)
#pragma unroll
            for (int j = 0; j < moving_rows / 8; ++j)
#pragma unroll
              for (int i = 0; i < 4; ++i)
                visit(m, j, i);
        };

        float p[groups][moving_rows / 8][4];
        multiply_rows<T, moving_rows, D>(p, transposed, scored,
                                         [](int, int) { return Accumulators{}; });
        // Only tiles on the diagonal have keys that some of the queries must not see.
        const int ahead = start - first + tile * moving_rows;  // of the moving tile
        if (own_keys ? ahead < own_tile : ahead + moving_rows > 0)
          each_score([&](int m, int j, int i) {
            const int moving = ahead + 8 * j + lane % 4 * 2 + i % 2;
            const int mine = warp_row + 16 * m + lane / 4 + i / 2 * 8;
            if (own_keys ? mine > moving : moving > mine) p[m][j][i] = -INFINITY;
          });
        each_score([&](int m, int j, int i) {
          p[m][j][i] = exp2_fast(p[m][j][i] * scale_log2 - log_sum_exp(m, j, i));
        });

        KeptScores<moving_rows, own_keys> kept[dropout ? groups : 1];
        const float kept_scale = a.mask.scale();
        const auto keep = [&](int m, int j, int i) { return kept[m](j, i) ? kept_scale : 0.0f; };
        if constexpr (dropout)
          for (int m = 0; m < groups; ++m)
            kept[m].decide(a.mask, task.sample,
                           a.first_mask_row + static_cast<std::int64_t>(head) * a.length,
                           first + warp_row + 16 * m, first + ahead);
        // Gradients of probabilities, less delta; then of scores. Dropout scales the former.
        float grad_p[groups][moving_rows / 8][4];
        if constexpr (gives_first) {
          multiply_rows<T, moving_rows, D>(
              grad_p, transposed.behind(moving_bytes),
              [&](int m, int k) { return load_left(own.behind(own_bytes), m, k); }, minus_delta);
          each_score([&](int m, int j, int i) {
            if constexpr (dropout) {
              const float delta = -minus_delta(m, j).values[i];
              grad_p[m][j][i] = (grad_p[m][j][i] + delta) * keep(m, j, i) - delta;
            }
            grad_p[m][j][i] *= p[m][j][i];
          });
        }

        if constexpr (gives_value) {
          if constexpr (dropout)
            each_score([&](int m, int j, int i) { p[m][j][i] *= keep(m, j, i); });
          add_weighted<T, moving_rows, D>(grad_value, p, straight.behind(moving_bytes));
        }
        if constexpr (gives_first) add_weighted<T, moving_rows, D>(grad_first, grad_p, straight);
        __syncthreads();  // the stage may be refilled
        if (more && staging == Staging::registers) arrive(0);
      }
    }

    T* const results = a.grad_qkv + (task.sample * a.length + first + warp_row) * a.columns.stride +
                       (own_keys ? key_column : task.head * a.width);

#pragma unroll
    for (int m = 0; m < groups; ++m) {
      const auto store_part = [&](int which, const float(&sums)[D / 8][4], int tile) {
        store_rows<T, D>(results + std::int64_t{16 * m} * a.columns.stride +
                             which * (a.columns.value - a.columns.key),
                         a.columns.stride, a.length - first - warp_row - 16 * m, a.width, sums,
                         shared.own[tile], warp_row + 16 * m);
      };
      if constexpr (gives_first) {
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            grad_first[m][n][i] *= a.scale;
        store_part(0, grad_first[m], 0);
      }
      if constexpr (gives_value) store_part(1, grad_value[m], 1);
    }
  }
}

template <class T, int D, Staging staging, bool dropout>
void launch_backward(const AttentionBackward& op, PairStatistics* statistics, Stream stream) {
  const auto length = static_cast<int>(op.qkv.dim(1));
  const auto width = static_cast<int>(op.out.dim(2) / op.heads.query);
  const auto order = [&](int heads) {
    return block_order(stream, op.qkv.dim(0), heads, length, width,
                       own_tile_of<D, staging, dropout>);
  };
  Arguments<T> arguments{.order = order(op.heads.query),
                         .grad_qkv = op.grad_qkv.data<T>(),
                         .grad_out = op.grad_out.data<T>(),
                         .out = op.out.data<T>(),
                         .qkv = op.qkv.data<T>(),
                         .log_sum_exp = op.log_sum_exp.data<float>(),
                         .statistics = statistics,
                         .length = length,
                         .channels = static_cast<int>(op.out.dim(2)),
                         .columns = head_columns(op.heads, width),
                         .width = width,
                         .scale = 1.0f / std::sqrt(static_cast<float>(width)),
                         .mask = op.mask,
                         .first_mask_row = std::int64_t{op.first_head} * length};
  constexpr std::size_t bytes = sizeof(Shared<T, D, staging, dropout>);
  launch(backward<T, D, staging, dropout, Owner::queries, false>, arguments.order.grid(),
         {attention_threads}, bytes, stream, arguments);
  arguments.order = order(op.heads.key_value);
  const auto launch_owner = [&]<Owner owner>() {
    launch(op.heads.group() > 1 ? backward<T, D, staging, dropout, owner, true>
                                : backward<T, D, staging, dropout, owner, false>,
           arguments.order.grid(), {attention_threads}, bytes, stream, arguments);
  };
  launch_owner.template operator()<Owner::keys>();
  if constexpr (wide_head<D>) launch_owner.template operator()<Owner::values>();
}

/// Sequences [first, first + count) of an operation.
AttentionBackward sequences_of(AttentionBackward op, std::int64_t first, std::int64_t count) {
  for (View* view : {&op.grad_qkv, &op.grad_out, &op.out, &op.log_sum_exp, &op.qkv}) {
    view->address += static_cast<std::size_t>(first * view->stride(0)) * size_of(view->dtype);
    view->shape[0] = count;
  }
  op.mask.first_sample += first;
  return op;
}

}  // namespace

void launch_cuda(const AttentionBackward& op, Stream stream) {
  const std::int64_t batch = op.qkv.dim(0);
  const auto width = static_cast<int>(op.out.dim(2) / op.heads.query);
  const std::int64_t pairs = op.heads.query * statistics_rows(op.qkv.dim(1)) / 2;  // of a sequence
  const auto fitting =
      static_cast<std::int64_t>(queue_of(stream).workspace_bytes / sizeof(PairStatistics)) / pairs;
  if (fitting > 0 && fitting < batch) {
    launch_cuda(sequences_of(op, 0, fitting), stream);
    return launch_cuda(sequences_of(op, fitting, batch - fitting), stream);
  }
  auto* statistics = workspace<PairStatistics>(stream, batch * pairs);
  if (!fits_tiles(stream, width, op.mask.active(), {op.qkv, op.out, op.grad_out, op.grad_qkv}))
    return attention_plain(op, statistics, stream);
  dispatch_tiles(op.qkv.dtype, width, queue_of(stream).capability, op.mask.active(),
                 [&]<class T, int D, Staging staging, bool dropout>() {
                   launch_backward<T, D, staging, dropout>(op, statistics, stream);
                 });
}

}  // namespace sluice
