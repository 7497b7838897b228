#include "kernels/column_sum.h"

#include "kernels/cuda/column_partials.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace cuda {
namespace {

constexpr int warps = 8;
constexpr int finish_threads = 128;

template <int N>
struct Shared {
  float partial[warps][warp_size * N];
};

/// A block sums 32 * N columns of one part of the rows; its warps take the rows in turn.
template <class T, int N>
__global__ void __launch_bounds__(warps* warp_size)
    sum_rows(float* partial, const T* in, std::int64_t rows, std::int64_t columns,
             std::int64_t stride, std::int64_t rows_per_split) {
  auto& shared = shared_memory<Shared<N>>();
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
  for (int i = warp * warp_size + lane; i < warp_size * N; i += warps * warp_size) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w)
      total += shared.partial[w][i];
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * warp_size * N + i;
    if (at < columns) partial[blockIdx.y * columns + at] = total;
  }
}

__global__ void __launch_bounds__(finish_threads)
    finish(float* out, const float* partial, std::int64_t splits, std::int64_t columns,
           std::int64_t stride, bool accumulate) {
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= columns) return;
  float sum = 0;
  for (std::int64_t s = 0; s < splits; ++s)
    sum += partial[s * stride + j];
  out[j] = accumulate ? out[j] + sum : sum;
}

}  // namespace

void add_partials(float* out, const float* partial, std::int64_t splits, std::int64_t columns,
                  std::int64_t stride, bool accumulate, Stream stream) {
  launch(finish, {pieces(columns, finish_threads)}, {finish_threads}, 0, stream, out, partial,
         splits, columns, stride, accumulate);
}

}  // namespace cuda

void launch_cuda(const ColumnSum& op, Stream stream) {
  using namespace cuda;
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
           {warp_size, warps}, wide_enough ? sizeof(Shared<packed>) : sizeof(Shared<1>), stream,
           partial, op.in.data<T>(), rows, columns, op.in.stride(0), (rows + splits - 1) / splits);
  });
  add_partials(op.out.data<float>(), partial, splits, columns, columns, op.accumulate, stream);
}

}  // namespace sluice
