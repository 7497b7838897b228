#include "kernels/reduce.h"

#include <algorithm>

#include "kernels/cuda/last_block.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

/// Warps of a block, except where one block has all the work.
constexpr int warps = 8;
constexpr int threads = warps * warp_size;
constexpr int lone_warps = 16;
constexpr int lone_threads = lone_warps * warp_size;

template <int count>
struct Partials {
  double partial[count];
};
template <int N>
struct Columns {
  float partial[warps][warp_size * N];
  int last;
};

/// Number of parts into which the rows are split: a function of the shape alone, so that the bits
/// do not depend on the GPU. Enough blocks for four on each of 128 multiprocessors.
constexpr std::int64_t row_splits(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t blocks = 512, columns_of_block = 256, least_rows = 64;
  if (columns > max_arrivals * warp_size)
    return 1;  // there is no counter for each block of columns
  const std::int64_t enough = blocks / ((columns + columns_of_block - 1) / columns_of_block);
  return std::clamp<std::int64_t>(enough, 1, std::max<std::int64_t>(1, rows / least_rows));
}

/// Sum of numbers by one block, because they are few. Each thread adds its own in order, then the
/// threads' sums are added in a fixed tree.
template <class T>
__device__ __forceinline__ double sum_of(const T* in, std::int64_t count) {
  double mine = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += lone_threads)
    mine += static_cast<double>(in[i]);
  return block_sum<lone_warps>(mine, shared_memory<Partials<lone_warps>>().partial);
}

__global__ void __launch_bounds__(lone_threads)
    sum(float* out, const float* in, std::int64_t count, double scale, bool accumulate) {
  const double total = sum_of(in, count) * scale;
  if (threadIdx.x == 0)
    *out = static_cast<float>(accumulate ? static_cast<double>(*out) + total : total);
}

__global__ void __launch_bounds__(lone_threads)
    clip_factor(double* norm_out, float* factor_out, const double* partial, std::int64_t count,
                double limit, double loss_scale) {
  const double sum = sum_of(partial, count);
  if (threadIdx.x != 0) return;
  const double norm = sqrt(sum) / loss_scale;
  double factor = limit > 0 && limit < norm + 1e-6 ? limit / (norm + 1e-6) : 1.0;
  factor /= loss_scale;
  const bool finite = norm - norm == 0;
  *norm_out = norm;
  *factor_out = finite ? static_cast<float>(factor) : NAN;
}

template <class T>
struct NormPart {
  double* partial;
  const T* in;
  std::int64_t count;
  std::int64_t block;
};

/// One thread block per block of elements. Sums are fp32 within a thread's share and fp64 across
/// threads.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    squared_norm(const __grid_constant__ Parts<NormPart<T>> parts) {
  const auto [part, index] = parts.of_block(blockIdx.x);
  const std::int64_t first = static_cast<std::int64_t>(index) * part.block;
  const std::int64_t end = first + part.block < part.count ? first + part.block : part.count;
  float mine = 0;
  for (std::int64_t i = first + static_cast<std::int64_t>(threadIdx.x) * N; i < end;
       i += threads * N) {
    if (i + N <= end) {
      float values[N];
      load_floats(values, part.in + i);
#pragma unroll
      for (int j = 0; j < N; ++j)
        mine += values[j] * values[j];
    } else {
      for (std::int64_t j = i; j < end; ++j) {
        const float value = to_float(part.in[j]);
        mine += value * value;
      }
    }
  }
  const double total =
      block_sum<warps>(static_cast<double>(mine), shared_memory<Partials<warps>>().partial);
  if (threadIdx.x == 0) part.partial[index] = total;
}

/// Launches those of the norms whose arrays have elements of T and can be read N at a time, or not.
template <class T, int N>
void launch_norms(std::span<const SquaredNorm> norms, Stream stream) {
  Parts<NormPart<T>> parts;
  const auto flush = [&] {
    launch(squared_norm<T, N>, {parts.blocks()}, {threads}, sizeof(Partials<warps>), stream, parts);
    parts = {};
  };
  for (const SquaredNorm& op : norms) {
    const bool in_fours = aligned(4 * sizeof(T), {op.in}) && op.block % 4 == 0;
    if (op.in.dtype != dtype_for<T>() || in_fours != (N == 4)) continue;
    if (parts.full()) flush();
    parts.add({op.partial.data<double>(), op.in.data<T>(), op.in.size(), op.block},
              pieces(op.in.size(), op.block));
  }
  flush();
}

/// Adds the partial sums of 32 * N columns, which begin with `first`, in a fixed order.
template <int N>
__device__ __forceinline__ void add_splits(float* out, bool accumulate, const float* partial,
                                           std::int64_t splits, std::int64_t first,
                                           std::int64_t columns, Columns<N>& shared) {
  constexpr int vector = N % 4 == 0 ? 4 : 1;
  constexpr int row_lanes = warp_size * N / vector;  // threads that read one split
  constexpr int at_once = threads / row_lanes;
  const int thread = static_cast<int>(threadIdx.y * warp_size + threadIdx.x);
  const int column = thread % row_lanes * vector;
  float sum[vector] = {};
  if (first + column < columns) {
    constexpr int ahead = 8;  // loads under way in a thread: this block is alone
    for (std::int64_t s = thread / row_lanes; s < splits; s += ahead * at_once) {
      float values[ahead][vector] = {};
#pragma unroll
      for (int a = 0; a < ahead; ++a)
        if (s + a * at_once < splits)
          load_floats(values[a], partial + (s + a * at_once) * columns + first + column);
#pragma unroll
      for (int a = 0; a < ahead; ++a)
#pragma unroll
        for (int i = 0; i < vector; ++i)
          sum[i] += values[a][i];
    }
  }
#pragma unroll
  for (int i = 0; i < vector; ++i)
    shared.partial[thread / row_lanes][column + i] = sum[i];
  __syncthreads();
  for (int i = thread; i < warp_size * N && first + i < columns; i += threads) {
    float all = 0;
#pragma unroll
    for (int s = 0; s < at_once; ++s)
      all += shared.partial[s][i];
    float& total = out[first + i];
    total = accumulate ? total + all : all;
  }
}

/// A block sums 32 * N columns of one part of the rows; its warps take the rows in turn. The last
/// block of these columns adds the parts.
template <class T, int N>
__global__ void __launch_bounds__(threads, 4)
    sum_rows(float* out, bool accumulate, float* partial, int* arrivals, const T* in,
             std::int64_t rows, std::int64_t columns, std::int64_t stride,
             std::int64_t rows_per_split) {
  auto& shared = shared_memory<Columns<N>>();
  const int lane = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(threadIdx.y);
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * warp_size + lane) * N;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * rows_per_split;
  const std::int64_t end = first + rows_per_split < rows ? first + rows_per_split : rows;
  float sum[N] = {};
  if (column < columns) {
    constexpr int ahead = 4;  // loads under way in a thread
    for (std::int64_t row = first + warp; row < end; row += ahead * warps) {
      float values[ahead][N] = {};
#pragma unroll
      for (int a = 0; a < ahead; ++a)
        if (row + a * warps < end) load_floats(values[a], in + (row + a * warps) * stride + column);
#pragma unroll
      for (int a = 0; a < ahead; ++a)
#pragma unroll
        for (int i = 0; i < N; ++i)
          sum[i] += values[a][i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    shared.partial[warp][lane * N + i] = sum[i];
  __syncthreads();
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * warp_size * N;
  for (int i = warp * warp_size + lane; i < warp_size * N && first_column + i < columns;
       i += threads) {
    float part = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w)
      part += shared.partial[w][i];
    partial[blockIdx.y * columns + first_column + i] = part;
  }
  if (is_last_block(arrivals + blockIdx.x, gridDim.y, shared.last))
    add_splits<N>(out, accumulate, partial, gridDim.y, first_column, columns, shared);
}

}  // namespace

void launch_cuda(const Sum& op, Stream stream) {
  launch(sum, {1}, {lone_threads}, sizeof(Partials<lone_warps>), stream, op.out.data<float>(),
         op.in.data<float>(), op.in.size(), op.scale, op.accumulate);
}

void launch_cuda(const ColumnSum& op, Stream stream) {
  const std::int64_t rows = op.in.dim(0);
  const std::int64_t columns = op.in.dim(1);
  const std::int64_t splits = row_splits(rows, columns);
  auto* partial = workspace<float>(stream, splits * columns);
  dispatch(op.in.dtype, [&]<class T>() {
    constexpr int packed = wide<T>;
    const bool wide_enough = columns % packed == 0 && aligned(16, {op.in});
    const int elements = wide_enough ? packed : 1;
    launch(wide_enough ? sum_rows<T, packed> : sum_rows<T, 1>,
           {pieces(columns, warp_size * elements), static_cast<unsigned>(splits)},
           {warp_size, warps}, wide_enough ? sizeof(Columns<packed>) : sizeof(Columns<1>), stream,
           op.out.data<float>(), op.accumulate, partial, queue_of(stream).arrivals, op.in.data<T>(),
           rows, columns, op.in.stride(0), (rows + splits - 1) / splits);
  });
}

void launch_cuda(const SquaredNorm& op, Stream stream) {
  launch_cuda(SquaredNormBatch{{&op, 1}}, stream);
}

void launch_cuda(const SquaredNormBatch& op, Stream stream) {
  launch_norms<float, 4>(op.norms, stream);
  launch_norms<float, 1>(op.norms, stream);
  launch_norms<BFloat16, 4>(op.norms, stream);
  launch_norms<BFloat16, 1>(op.norms, stream);
}

void launch_cuda(const ClipFactor& op, Stream stream) {
  launch(clip_factor, {1}, {lone_threads}, sizeof(Partials<lone_warps>), stream,
         op.norm.data<double>(), op.factor.data<float>(), op.partial.data<double>(),
         op.partial.size(), op.limit, op.loss_scale);
}

}  // namespace sluice
