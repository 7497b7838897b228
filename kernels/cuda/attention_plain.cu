#include <cmath>

#include "kernels/cuda/attention_dispatch.h"

namespace sluice {
namespace {

using namespace cuda;

/// A row of a head is held by `lanes` neighbouring threads: 32 elements each, in groups of four.
constexpr int held = 32;
constexpr int threads = 128;
/// Rows per moving tile.
constexpr int tile_rows = 32;
constexpr int max_width = 256;

/// `out` and `log_sum_exp` are results of the forward pass, which the backward pass reads.
template <class T>
struct Arguments {
  T* out;
  float* log_sum_exp;
  T* grad_qkv;
  const T* grad_out;
  const T* qkv;
  PairStatistics* statistics;
  int length;
  int channels;
  int heads;  ///< of q
  HeadColumns columns;
  int width;
  float scale;
  DropoutMask mask;
  std::int64_t first_mask_row;  ///< first query of first_head in the mask
};

template <int lanes>
struct Shared {
  float rows[2][tile_rows][held * lanes];
};

/// Column of element i of this thread in its row.
template <int lanes>
__device__ __forceinline__ int column_of(int i) {
  const int part = static_cast<int>(threadIdx.x) % lanes;
  return (i / 4 * lanes + part) * 4 + i % 4;
}

template <int lanes, class T>
__device__ __forceinline__ void load_held(float (&to)[held], const HeadRows<T>& rows,
                                          std::int64_t row, float scale) {
#pragma unroll
  for (int i = 0; i < held; ++i) {
    const int column = column_of<lanes>(i);
    to[i] = row < rows.count && column < rows.width
                ? to_float(rows.start[row * rows.stride + column]) * scale
                : 0.0f;
  }
}

template <int lanes, class T>
__device__ __forceinline__ void store_held(T* to, int width, const float (&from)[held],
                                           float scale) {
#pragma unroll
  for (int i = 0; i < held; ++i) {
    const int column = column_of<lanes>(i);
    if (column < width) to[column] = from_float<T>(from[i] * scale);
  }
}

/// Loads the next rows of two operands, zero-padded, with the whole block.
template <int lanes, class T>
__device__ __forceinline__ void load_tiles(Shared<lanes>& shared, const HeadRows<T>& first,
                                           const HeadRows<T>& second, std::int64_t from) {
  constexpr int columns = held * lanes;
  for (int i = static_cast<int>(threadIdx.x); i < tile_rows * columns; i += threads) {
    const std::int64_t row = from + i / columns;
    const int column = i % columns;
    const bool inside = row < first.count && column < first.width;
    shared.rows[0][i / columns][column] =
        inside ? to_float(first.start[row * first.stride + column]) : 0.0f;
    shared.rows[1][i / columns][column] =
        inside ? to_float(second.start[row * second.stride + column]) : 0.0f;
  }
}

/// Sum over the threads that hold a row; each of them gets it.
template <int lanes>
__device__ __forceinline__ float row_sum(float sum) {
#pragma unroll
  for (int mask = 1; mask < lanes; mask *= 2)
    sum += shuffle_xor(sum, mask);
  return sum;
}

/// Dot product of two rows; every lane of the row gets it.
template <int lanes>
__device__ __forceinline__ float dot(const float (&mine)[held], const float* row) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < held; ++i)
    sum += mine[i] * row[column_of<lanes>(i)];
  return row_sum<lanes>(sum);
}

template <int lanes>
__device__ __forceinline__ void add_scaled(float (&sums)[held], float weight, const float* row) {
#pragma unroll
  for (int i = 0; i < held; ++i)
    sums[i] += weight * row[column_of<lanes>(i)];
}

__device__ __forceinline__ float keep_factor(const DropoutMask& mask, std::int64_t sample,
                                             std::int64_t mask_row, std::int64_t query,
                                             std::int64_t key) {
  if (!mask.active()) return 1.0f;
  const auto words = philox(
      mask.key,
      static_cast<std::uint64_t>(key / 4) | static_cast<std::uint64_t>(mask_row + query) << 24,
      static_cast<std::uint64_t>(mask.first_sample + sample));
  return words[static_cast<std::size_t>(key % 4)] >= mask.threshold() ? mask.scale() : 0.0f;
}

/// Position of a thread's work: block (row tile, head of q or of k and v, sequence).
template <class T, int lanes>
struct ThreadPosition {
  static constexpr int rows = threads / lanes;
  std::int64_t first, row, sample;

  __device__ ThreadPosition()
      : first(static_cast<std::int64_t>(blockIdx.x) * rows),
        row(first + threadIdx.x / lanes),
        sample(blockIdx.z) {}

  __device__ HeadRows<T> queries(const Arguments<T>& a, int head) const {
    return rows_at(a, head * a.width);
  }
  __device__ HeadRows<T> keys(const Arguments<T>& a, int key_value) const {
    return rows_at(a, a.columns.key + key_value * a.width);
  }
  __device__ HeadRows<T> values(const Arguments<T>& a, int key_value) const {
    return rows_at(a, a.columns.value + key_value * a.width);
  }
  __device__ HeadRows<T> rows_at(const Arguments<T>& a, int column) const {
    return head_rows(a.qkv, sample, a.length, a.columns.stride, column, a.width);
  }
  __device__ std::int64_t end(const Arguments<T>& a) const {
    return first + rows < a.length ? first + rows : a.length;
  }
};

template <class T, int lanes>
__global__ void __launch_bounds__(threads) forward(Arguments<T> a) {
  auto& shared = shared_memory<Shared<lanes>>();
  const ThreadPosition<T, lanes> place;
  const int head = static_cast<int>(blockIdx.y), key_value = head / a.columns.group;
  const std::int64_t head_row = std::int64_t{head} * a.length;
  float query[held], out[held] = {};
  load_held<lanes>(query, place.queries(a, head), place.row, a.scale * log2_e);
  float top = -INFINITY, sum = 0;
  for (std::int64_t from = 0; from < place.end(a); from += tile_rows) {
    __syncthreads();
    load_tiles<lanes>(shared, place.keys(a, key_value), place.values(a, key_value), from);
    __syncthreads();
    for (int j = 0; j < tile_rows; ++j) {
      const float product = dot<lanes>(query, shared.rows[0][j]);
      const std::int64_t key = from + j;
      if (key > place.row) continue;
      const float higher = maximum(top, product);
      const float shrink = exp2_fast(top - higher);
      const float weight = exp2_fast(product - higher);
      top = higher;
      sum = sum * shrink + weight;
#pragma unroll
      for (int i = 0; i < held; ++i)
        out[i] *= shrink;
      add_scaled<lanes>(
          out,
          weight * keep_factor(a.mask, place.sample, a.first_mask_row + head_row, place.row, key),
          shared.rows[1][j]);
    }
  }
  if (place.row >= a.length) return;
  store_held<lanes>(
      a.out + (place.sample * a.length + place.row) * a.channels + std::int64_t{head} * a.width,
      a.width, out, 1.0f / sum);
  if (threadIdx.x % lanes == 0)
    a.log_sum_exp[place.sample * a.heads * a.length + head_row + place.row] =
        top * ln_2 + logf(sum);
}

/// Blocks that own keys go through the heads of q that attend to them, one after the other.
template <class T, int lanes, Owner owner>
__global__ void __launch_bounds__(threads) backward(Arguments<T> a) {
  constexpr bool own_keys = owner == Owner::keys;
  auto& shared = shared_memory<Shared<lanes>>();
  const ThreadPosition<T, lanes> place;
  const int first_head = static_cast<int>(blockIdx.y) * (own_keys ? a.columns.group : 1);
  const int heads = own_keys ? a.columns.group : 1;
  const int key_value = first_head / a.columns.group;
  // Scores are own_score times the first tile; gradients of probabilities are own_grad times the
  // second tile.
  float own_score[held], own_grad[held], grad_first[held] = {}, grad_value[held] = {};
  if constexpr (own_keys) {
    load_held<lanes>(own_score, place.keys(a, key_value), place.row, 1.0f);
    load_held<lanes>(own_grad, place.values(a, key_value), place.row, 1.0f);
  }
  for (int head = first_head; head < first_head + heads; ++head) {
    const int column = head * a.width;
    const std::int64_t head_row = std::int64_t{head} * a.length;
    const HeadRows<T> queries = place.queries(a, head);
    const HeadRows<T> grads =
        head_rows(a.grad_out, place.sample, a.length, a.channels, column, a.width);
    PairStatistics* const statistics =
        a.statistics + (place.sample * a.heads + head) * statistics_rows(a.length) / 2;
    if constexpr (!own_keys) {
      load_held<lanes>(own_score, queries, place.row, 1.0f);
      load_held<lanes>(own_grad, grads, place.row, 1.0f);
      float own_out[held];
      load_held<lanes>(own_out,
                       head_rows<T>(a.out, place.sample, a.length, a.channels, column, a.width),
                       place.row, 1.0f);
      float delta = 0;
#pragma unroll
      for (int i = 0; i < held; ++i)
        delta += own_grad[i] * own_out[i];
      delta = row_sum<lanes>(delta);
      if (place.row < a.length && threadIdx.x % lanes == 0)
        statistics[place.row / 2].set(
            static_cast<int>(place.row % 2), delta,
            a.log_sum_exp[place.sample * a.heads * a.length + head_row + place.row]);
    }
    const std::int64_t start = own_keys ? place.first / tile_rows * tile_rows : 0;
    const std::int64_t end = own_keys ? a.length : place.end(a);
    for (std::int64_t from = start; from < end; from += tile_rows) {
      __syncthreads();
      if constexpr (own_keys)
        load_tiles<lanes>(shared, queries, grads, from);
      else
        load_tiles<lanes>(shared, place.keys(a, key_value), place.values(a, key_value), from);
      __syncthreads();
      for (int j = 0; j < tile_rows; ++j) {
        const float product = dot<lanes>(own_score, shared.rows[0][j]);
        const float grad_probability = dot<lanes>(own_grad, shared.rows[1][j]);
        const std::int64_t query = own_keys ? from + j : place.row;
        const std::int64_t key = own_keys ? place.row : from + j;
        if (key > query || query >= a.length) continue;
        const float probability =
            exp2_fast(product * a.scale * log2_e - statistics[query / 2].log_sum_exp[query % 2]);
        const float keep =
            keep_factor(a.mask, place.sample, a.first_mask_row + head_row, query, key);
        const float grad_score =
            probability *
            (grad_probability * keep + statistics[query / 2].minus_delta.values[query % 2]);
        add_scaled<lanes>(grad_first, grad_score, shared.rows[0][j]);
        if constexpr (own_keys)
          add_scaled<lanes>(grad_value, probability * keep, shared.rows[1][j]);
      }
    }
  }
  if (place.row >= a.length) return;
  T* const to = a.grad_qkv + (place.sample * a.length + place.row) * a.columns.stride;
  if constexpr (own_keys) {
    store_held<lanes>(to + a.columns.key + key_value * a.width, a.width, grad_first, a.scale);
    store_held<lanes>(to + a.columns.value + key_value * a.width, a.width, grad_value, 1.0f);
  } else {
    store_held<lanes>(to + first_head * a.width, a.width, grad_first, a.scale);
  }
}

/// Calls `body.operator()<T, lanes>()`.
template <class Body>
void dispatch_plain(DType dtype, int width, Body&& body) {
  check(width <= max_width, "attention heads on a GPU are at most 256 wide");
  cuda::dispatch(dtype, [&]<class T>() {
    if (width <= held) return body.template operator()<T, 1>();
    if (width <= 2 * held) return body.template operator()<T, 2>();
    if (width <= 4 * held) return body.template operator()<T, 4>();
    body.template operator()<T, 8>();
  });
}

template <int lanes>
dim3 grid_of(const View& qkv, int heads) {
  return {pieces(qkv.dim(1), threads / lanes), static_cast<unsigned>(heads),
          static_cast<unsigned>(qkv.dim(0))};
}

/// Arguments that the forward and the backward pass share.
template <class T, class Op>
Arguments<T> common_arguments(const Op& op) {
  const auto width = static_cast<int>(op.out.dim(2) / op.heads.query);
  Arguments<T> arguments{};
  arguments.qkv = op.qkv.template data<T>();
  arguments.length = static_cast<int>(op.qkv.dim(1));
  arguments.channels = static_cast<int>(op.out.dim(2));
  arguments.heads = op.heads.query;
  arguments.columns = head_columns(op.heads, width);
  arguments.width = width;
  arguments.scale = 1.0f / std::sqrt(static_cast<float>(width));
  arguments.mask = op.mask;
  arguments.first_mask_row = std::int64_t{op.first_head} * arguments.length;
  return arguments;
}

}  // namespace

void cuda::attention_plain(const AttentionForward& op, Stream stream) {
  const auto width = static_cast<int>(op.out.dim(2) / op.heads.query);
  dispatch_plain(op.qkv.dtype, width, [&]<class T, int lanes>() {
    Arguments<T> arguments = common_arguments<T>(op);
    arguments.out = op.out.data<T>();
    arguments.log_sum_exp = op.log_sum_exp.data<float>();
    launch(forward<T, lanes>, grid_of<lanes>(op.qkv, op.heads.query), {threads},
           sizeof(Shared<lanes>), stream, arguments);
  });
}

void cuda::attention_plain(const AttentionBackward& op, PairStatistics* statistics, Stream stream) {
  const auto width = static_cast<int>(op.out.dim(2) / op.heads.query);
  dispatch_plain(op.qkv.dtype, width, [&]<class T, int lanes>() {
    Arguments<T> arguments = common_arguments<T>(op);
    arguments.grad_qkv = op.grad_qkv.data<T>();
    arguments.grad_out = op.grad_out.data<T>();
    arguments.out = op.out.data<T>();
    arguments.log_sum_exp = op.log_sum_exp.data<float>();
    arguments.statistics = statistics;
    launch(backward<T, lanes, Owner::queries>, grid_of<lanes>(op.qkv, op.heads.query), {threads},
           sizeof(Shared<lanes>), stream, arguments);
    launch(backward<T, lanes, Owner::keys>, grid_of<lanes>(op.qkv, op.heads.key_value), {threads},
           sizeof(Shared<lanes>), stream, arguments);
  });
}

}  // namespace sluice
