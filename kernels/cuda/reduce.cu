#include "kernels/reduce.h"

#include "kernels/cuda/column_partials.h"
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
constexpr int finish_warps = 32;  // as many loads at once as possible: there are few columns

template <int count>
struct Partials {
  double partial[count];
};
struct FinishSums {
  float sums[finish_warps][warp_size];
};
template <int N>
struct Columns {
  float partial[warps][warp_size * N];
};

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

/// A block sums 32 * N columns of one part of the rows; its warps take the rows in turn.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    sum_rows(float* partial, const T* in, std::int64_t rows, std::int64_t columns,
             std::int64_t stride, std::int64_t rows_per_split) {
  auto& shared = shared_memory<Columns<N>>();
  const int lane = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(threadIdx.y);
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * warp_size + lane) * N;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * rows_per_split;
  const std::int64_t end = first + rows_per_split < rows ? first + rows_per_split : rows;
  float sum[N] = {};
  if (column < columns) {
    for (std::int64_t row = first + warp; row < end; row += warps) {
      float values[N];
      load_floats(values, in + row * stride + column);
#pragma unroll
      for (int i = 0; i < N; ++i)
        sum[i] += values[i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    shared.partial[warp][lane * N + i] = sum[i];
  __syncthreads();
  for (int i = warp * warp_size + lane; i < warp_size * N; i += threads) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w)
      total += shared.partial[w][i];
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * warp_size * N + i;
    if (at < columns) partial[blockIdx.y * columns + at] = total;
  }
}

/// A block has 32 columns. Its warps take the partial sums in turn, and the first warp adds what
/// they have.
__global__ void __launch_bounds__(finish_warps* warp_size)
    finish(ColumnTotals first, ColumnTotals second, const float* partial, std::int64_t splits,
           std::int64_t columns, std::int64_t stride) {
  auto& shared = shared_memory<FinishSums>();
  const int lane = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(threadIdx.y);
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * warp_size + lane;
  float sum = 0;
  if (at < stride) {
#pragma unroll 8
    for (std::int64_t s = warp; s < splits; s += finish_warps)
      sum += partial[s * stride + at];
  }
  shared.sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || at >= stride) return;
#pragma unroll
  for (int w = 1; w < finish_warps; ++w)
    sum += shared.sums[w][lane];
  const ColumnTotals& totals = at < columns ? first : second;
  float& out = totals.out[at < columns ? at : at - columns];
  out = totals.accumulate ? out + sum : sum;
}

}  // namespace

void cuda::add_partials(const ColumnTotals (&totals)[2], const float* partial, std::int64_t splits,
                        std::int64_t columns, Stream stream) {
  const std::int64_t stride = totals[1].out != nullptr ? 2 * columns : columns;
  launch(finish, {pieces(stride, warp_size)}, {warp_size, finish_warps}, sizeof(FinishSums), stream,
         totals[0], totals[1], partial, splits, columns, stride);
}

void launch_cuda(const Sum& op, Stream stream) {
  launch(sum, {1}, {lone_threads}, sizeof(Partials<lone_warps>), stream, op.out.data<float>(),
         op.in.data<float>(), op.in.size(), op.scale, op.accumulate);
}

void launch_cuda(const ColumnSum& op, Stream stream) {
  const std::int64_t rows = op.in.dim(0);
  const std::int64_t columns = op.in.dim(1);
  const std::int64_t splits = row_splits(rows);
  auto* partial = workspace<float>(stream, splits * columns);
  dispatch(op.in.dtype, [&]<class T>() {
    constexpr int packed = wide<T>;
    const bool wide_enough = columns % packed == 0 && aligned(16, {op.in});
    const int elements = wide_enough ? packed : 1;
    launch(wide_enough ? sum_rows<T, packed> : sum_rows<T, 1>,
           {pieces(columns, warp_size * elements), static_cast<unsigned>(splits)},
           {warp_size, warps}, wide_enough ? sizeof(Columns<packed>) : sizeof(Columns<1>), stream,
           partial, op.in.data<T>(), rows, columns, op.in.stride(0), (rows + splits - 1) / splits);
  });
  add_partials({{op.out.data<float>(), op.accumulate}}, partial, splits, columns, stream);
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
