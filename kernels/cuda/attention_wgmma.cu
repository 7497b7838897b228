#include <cmath>

#include "kernels/attention.h"
#include "kernels/cuda/attention_dispatch.h"
#include "kernels/cuda/attention_softmax.h"
#include "kernels/cuda/attention_wgmma.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/wgmma.h"

namespace sluice {
namespace {

using namespace cuda;

// Attention for compute capability 9.0. One warpgroup copies tiles of keys and values to shared
// memory by TMA; two others multiply them by wgmma, 64 queries each, while the softmax of other
// tiles is computed (Shah et al., "FlashAttention-3", 2024, algorithm 2).

constexpr int warpgroup = 4 * warp_size;
constexpr int consumers = 2;
constexpr int threads = (1 + consumers) * warpgroup;
constexpr int rows_of_consumer = 64;
/// Rows of a tile: queries of a block, keys or values of a step.
constexpr int tile_rows = consumers * rows_of_consumer;
/// Columns of a box of TMA, whose rows have the 128 bytes of a swizzle.
constexpr int box_columns = 64;
constexpr unsigned box_bytes = tile_rows * 128;
constexpr unsigned swizzled_rows = 8 * 128;  ///< bytes of eight rows
/// Tiles of keys and values in shared memory.
constexpr int slots = 4;
/// Registers of a thread. Those that the producer gives back are the consumers' surplus over what
/// the compiler takes, which is all that 384 threads can have.
constexpr int producer_registers = 24, consumer_registers = 240, compiled_registers = 168;
static_assert(producer_registers + consumers * consumer_registers <=
              (1 + consumers) * compiled_registers);

template <class T>
struct Arguments {
  TensorMap qkv;  ///< dimensions: column of a head, head, position, sequence
  BlockOrder order;
  T* out;
  float* log_sum_exp;
  int length;
  int channels;
  int key_value_heads;
  int group;  ///< heads of q that attend to one of k and v
  int width;
  float scale_log2;  ///< 1/sqrt(width) * log2(e)
};

/// A tile has its boxes one after the other.
template <class T, int D>
struct Shared {
  using Tile = T[D / box_columns][tile_rows * box_columns];
  alignas(1024) Tile query;
  alignas(1024) Tile keys_values[slots];
  alignas(1024) T out[tile_rows * D];
  Mbarrier query_arrived;
  Mbarrier arrived[slots], released[slots];
};

/// A warpgroup's place in the sequence of key and value tiles: K0, K1, V0, K2, V1 and so on. The
/// tiles take the slots in turn.
struct Position {
  int slot = 0;
  unsigned round = 0;  ///< parity of the slot's phase

  __device__ __forceinline__ void next() {
    if (++slot < slots) return;
    slot = 0;
    round ^= 1;
  }
};

/// Copies the block's tiles, each as soon as its slot is free. Runs in one thread.
template <class T, int D>
__device__ __forceinline__ void produce(const Arguments<T>& a, Shared<T, D>& shared,
                                        const BlockTask& task, int first, int tiles) {
  const int queries = task.head;
  const int keys = static_cast<int>(a.order.heads) + task.head / a.group;
  const int values = keys + a.key_value_heads;
  const auto copy = [&](auto& tile, int head, int row, Mbarrier& arrived) {
    mbarrier_arrive_expecting(arrived, sizeof(tile));
#pragma unroll
    for (int box = 0; box < D / box_columns; ++box)
      tma_load(tile[box], a.qkv, box * box_columns, head, row, static_cast<int>(task.sample),
               arrived);
  };
  copy(shared.query, queries, first, shared.query_arrived);
  Position at;
  const auto copy_next = [&](int head, int tile) {
    mbarrier_wait(shared.released[at.slot], at.round ^ 1);
    copy(shared.keys_values[at.slot], head, tile * tile_rows, shared.arrived[at.slot]);
    at.next();
  };
  copy_next(keys, 0);
  for (int tile = 1; tile < tiles; ++tile) {
    copy_next(keys, tile);
    copy_next(values, tile - 1);
  }
  copy_next(values, tiles - 1);
}

/// Computes 64 rows of the output, from `first` on.
template <class T, int D>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Arguments<T>& a, Shared<T, D>& shared, int group,
                                      int first)
      : shared_(shared), first_(first), scale_log2_(a.scale_log2) {
    query_ = matrix_descriptor(shared.query[0] + group * rows_of_consumer * box_columns,
                               swizzled_rows, 0);
  }

  __device__ __forceinline__ void run(int tiles) {
    mbarrier_wait(shared_.query_arrived, 0);
    start_scores();
    wgmma_wait<0>(scores_[0]);
    release(score_slot_);
    float shrink[1][2];
    absorb(0, shrink);
    keep_weights();
    for (int tile = 1; tile < tiles; ++tile) {
      // The softmax of this tile's scores hides the products with the tile before.
      start_scores();
      const int value_slot = start_output();
      wgmma_wait<1>(scores_[0]);
      release(score_slot_);
      absorb(tile, shrink);
      wgmma_wait<0>(out_[0]);
      release(value_slot);
      scale_rows(out_, shrink);
      keep_weights();
    }
    const int value_slot = start_output();
    wgmma_wait<0>(out_[0]);
    release(value_slot);
  }

  __device__ __forceinline__ void store(const Arguments<T>& a, const BlockTask& task, int group) {
    const int warp = static_cast<int>(threadIdx.x) / warp_size % 4;
    const int row = first_ + 16 * warp;
    softmax_.finish(out_, a.log_sum_exp + (task.sample * a.order.heads + task.head) * a.length, row,
                    a.length, a.scale_log2);
    store_rows<T, D>(a.out + (task.sample * a.length + row) * a.channels + task.head * a.width,
                     a.channels, a.length - row, a.width, out_[0], shared_.out,
                     group * rows_of_consumer + 16 * warp);
  }

 private:
  /// Waits for the next tile and returns its slot.
  __device__ __forceinline__ int take() {
    const int slot = at_.slot;
    mbarrier_wait(shared_.arrived[slot], at_.round);
    at_.next();
    return slot;
  }
  __device__ __forceinline__ void release(int slot) {
    if (threadIdx.x % warp_size == 0) mbarrier_arrive(shared_.released[slot]);
  }

  __device__ __forceinline__ void start_scores() {
    score_slot_ = take();
    const MatrixDescriptor keys =
        matrix_descriptor(shared_.keys_values[score_slot_][0], swizzled_rows, 0);
    wgmma_fence(scores_[0]);
#pragma unroll
    for (unsigned k = 0; k < D / 16; ++k) {
      const unsigned bytes = k / 4 * box_bytes + k % 4 * 32;
      wgmma_rows<T>(scores_[0], advance(query_, bytes), advance(keys, bytes), k > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ int start_output() {
    const int slot = take();
    const MatrixDescriptor values =
        matrix_descriptor(shared_.keys_values[slot][0], swizzled_rows, box_bytes);
    wgmma_fence(out_[0], weights_);
#pragma unroll
    for (unsigned k = 0; k < tile_rows / 16; ++k)
      wgmma_add<T>(out_[0], weights_[k], advance(values, k * 2 * swizzled_rows));
    wgmma_commit();
    return slot;
  }

  __device__ __forceinline__ void absorb(int tile, float (&shrink)[1][2]) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    const int warp = static_cast<int>(threadIdx.x) / warp_size % 4;
    const int first_key = tile * tile_rows;
    if (first_key + tile_rows > first_) {
#pragma unroll
      for (int j = 0; j < tile_rows / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = first_ + 16 * warp + lane / 4 + i / 2 * 8;
          const int key = first_key + 8 * j + lane % 4 * 2 + i % 2;
          if (key > row) scores_[0][j][i] = -INFINITY;
        }
    }
    softmax_.absorb(scores_, shrink, scale_log2_);
  }

  /// Rounds the probabilities to T: pairs of accumulators have the layout of a left operand.
  __device__ __forceinline__ void keep_weights() {
#pragma unroll
    for (int k = 0; k < tile_rows / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        weights_[k][i] =
            pair<T>(scores_[0][2 * k + i / 2][i % 2 * 2], scores_[0][2 * k + i / 2][i % 2 * 2 + 1]);
  }

  Shared<T, D>& shared_;
  int first_;
  float scale_log2_;
  MatrixDescriptor query_;
  Position at_;
  int score_slot_ = 0;
  float scores_[1][tile_rows / 8][4];
  float out_[1][D / 8][4] = {};
  std::uint32_t weights_[tile_rows / 16][4];
  Softmax<1, tile_rows> softmax_;
};

template <class T, int D>
__global__ void __launch_bounds__(threads, 1) forward(const __grid_constant__ Arguments<T> a) {
  auto& shared = shared_memory<Shared<T, D>>();
  const BlockTask task = a.order.task();
  // The last tile attends to the most keys and is the first to run.
  const int first = (static_cast<int>(a.order.tiles) - 1 - task.tile) * tile_rows;
  const int end = first + tile_rows < a.length ? first + tile_rows : a.length;
  const int tiles = (end + tile_rows - 1) / tile_rows;
  if (threadIdx.x == 0) {
    mbarrier_init(shared.query_arrived, 1);
    for (int slot = 0; slot < slots; ++slot) {
      mbarrier_init(shared.arrived[slot], 1);
      mbarrier_init(shared.released[slot], consumers * warpgroup / warp_size);
    }
    mbarrier_publish();
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / warpgroup - 1;
  if (group < 0) {
    fewer_registers<producer_registers>();
    if (threadIdx.x == 0) produce(a, shared, task, first, tiles);
  } else {
    more_registers<consumer_registers>();
    Consumer<T, D> consumer(a, shared, group, first + group * rows_of_consumer);
    consumer.run(tiles);
    consumer.store(a, task, group);
  }
}

}  // namespace

bool cuda::has_attention_wgmma(int capability) {
  return capability == 90;
}

void cuda::attention_wgmma(const AttentionForward& op, Stream stream) {
  const std::int64_t length = op.qkv.dim(1), channels = op.out.dim(2);
  const std::int64_t width = channels / op.heads.query, row = op.heads.in_row() * width;
  const auto with = [&]<class T, int D>() {
    const MappedTensor qkv{.address = op.qkv.address,
                           .dtype = op.qkv.dtype,
                           .sizes = {width, op.heads.in_row(), length, op.qkv.dim(0)},
                           .strides = {width * 2, row * 2, length * row * 2},
                           .box = {box_columns, 1, tile_rows, 1}};
    const Arguments<T> arguments{
        .qkv = tensor_map(qkv),
        .order = block_order(stream, op.qkv.dim(0), op.heads.query, static_cast<int>(length),
                             static_cast<int>(width), tile_rows),
        .out = op.out.data<T>(),
        .log_sum_exp = op.log_sum_exp.data<float>(),
        .length = static_cast<int>(length),
        .channels = static_cast<int>(channels),
        .key_value_heads = op.heads.key_value,
        .group = op.heads.group(),
        .width = static_cast<int>(width),
        .scale_log2 = log2_e / std::sqrt(static_cast<float>(width))};
    launch(forward<T, D>, arguments.order.grid(), {threads}, sizeof(Shared<T, D>), stream,
           arguments);
  };
  const auto with_type = [&]<class T>() {
    if (width <= 64) return with.template operator()<T, 64>();
    with.template operator()<T, 128>();
  };
  if (op.qkv.dtype == DType::bf16) return with_type.template operator()<BFloat16>();
  with_type.template operator()<Half>();
}

}  // namespace sluice
