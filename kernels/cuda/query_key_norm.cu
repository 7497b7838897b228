#include "kernels/query_key_norm.h"

#include <algorithm>

#include "kernels/cuda/last_block.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

/// One warp per head of a row.
constexpr int warps = 8;
constexpr int threads = warps * warp_size;
constexpr int max_width = QueryKeyNormForward::max_width;
/// Columns of a head that a lane has at most.
constexpr int kept = max_width / warp_size;
/// Rows per block in the backward pass, unless there are many rows, and blocks at most: the last
/// block adds the sums of all.
constexpr std::int64_t rows_per_block = 16;
constexpr std::int64_t max_blocks = 512;

template <class T>
struct Arrays {
  const T* in;
  const T* query_weight;
  const T* key_weight;
  int query_heads, key_heads, width;
  float epsilon;

  __device__ __forceinline__ int in_row() const { return query_heads + 2 * key_heads; }
  __device__ __forceinline__ bool is_value(int head) const {
    return head >= query_heads + key_heads;
  }
  __device__ __forceinline__ const T* weight_of(int head) const {
    return head < query_heads ? query_weight : key_weight;
  }
};

/// A head in a warp's registers; columns beyond its width are 0.
template <class T>
__device__ __forceinline__ void load_head(float (&x)[kept], const T* from, int width) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
#pragma unroll
  for (int c = 0; c < kept; ++c) {
    const int column = c * warp_size + lane;
    x[c] = column < width ? to_float(from[column]) : 0.0f;
  }
}

template <class T>
__device__ __forceinline__ void store_head(T* to, const float (&x)[kept], int width) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
#pragma unroll
  for (int c = 0; c < kept; ++c) {
    const int column = c * warp_size + lane;
    if (column < width) to[column] = from_float<T>(x[c]);
  }
}

__device__ __forceinline__ float rstd_of(const float (&x)[kept], int width, float epsilon) {
  float squares = 0;
#pragma unroll
  for (int c = 0; c < kept; ++c)
    squares += x[c] * x[c];
  return reciprocal_root(warp_sum(squares) / static_cast<float>(width) + epsilon);
}

/// A block has a row.
template <class T>
__global__ void __launch_bounds__(threads) normalize(Arrays<T> a, T* out) {
  for (int head = static_cast<int>(threadIdx.x) / warp_size; head < a.in_row(); head += warps) {
    const std::int64_t start = (std::int64_t{blockIdx.x} * a.in_row() + head) * a.width;
    float x[kept];
    load_head(x, a.in + start, a.width);
    if (!a.is_value(head)) {
      const float rstd = rstd_of(x, a.width, a.epsilon);
      float weight[kept];
      load_head(weight, a.weight_of(head), a.width);
#pragma unroll
      for (int c = 0; c < kept; ++c)
        x[c] *= rstd * weight[c];
    }
    store_head(out + start, x, a.width);
  }
}

/// The gradient of one of the weights.
struct WeightGradient {
  float* out;
  bool accumulate;
};

struct Shared {
  float sums[warps][2][max_width];
  int last;
};

/// dx = rstd * (g - xhat * mean(g * xhat)) with g = dy * weight and xhat = x * rstd. A block goes
/// down its part of the rows, each of its warps along the heads. The gradients of the weights are
/// summed by lanes, then over warps in order, then over blocks in order by the last one to end.
template <class T>
__global__ void __launch_bounds__(threads)
    backward(Arrays<T> a, T* grad_in, const T* grad_out, WeightGradient query, WeightGradient key,
             float* partial, int* arrivals, std::int64_t rows, std::int64_t rows_per_split) {
  auto& shared = shared_memory<Shared>();
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * rows_per_split;
  const std::int64_t end = first + rows_per_split < rows ? first + rows_per_split : rows;
  float sums[2][kept] = {};
  for (std::int64_t row = first; row < end; ++row) {
    for (int head = warp; head < a.in_row(); head += warps) {
      const std::int64_t start = (row * a.in_row() + head) * a.width;
      float grad[kept];
      load_head(grad, grad_out + start, a.width);
      if (!a.is_value(head)) {
        float x[kept], weight[kept];
        load_head(x, a.in + start, a.width);
        load_head(weight, a.weight_of(head), a.width);
        const float rstd = rstd_of(x, a.width, a.epsilon);
        const bool is_key = head >= a.query_heads;
        float dot = 0;
#pragma unroll
        for (int c = 0; c < kept; ++c) {
          x[c] *= rstd;
          const float product = grad[c] * x[c];
          sums[0][c] += is_key ? 0.0f : product;
          sums[1][c] += is_key ? product : 0.0f;
          dot += product * weight[c];
        }
        dot = warp_sum(dot) / static_cast<float>(a.width);
#pragma unroll
        for (int c = 0; c < kept; ++c)
          grad[c] = (grad[c] * weight[c] - x[c] * dot) * rstd;
      }
      store_head(grad_in + start, grad, a.width);
    }
  }
#pragma unroll
  for (int c = 0; c < kept; ++c) {
    shared.sums[warp][0][c * warp_size + lane] = sums[0][c];
    shared.sums[warp][1][c * warp_size + lane] = sums[1][c];
  }
  __syncthreads();
  const int columns = 2 * a.width;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += threads) {
    const int which = i < a.width ? 0 : 1, column = i - which * a.width;
    float sum = 0;
    for (int w = 0; w < warps; ++w)
      sum += shared.sums[w][which][column];
    partial[std::int64_t{blockIdx.x} * columns + i] = sum;
  }
  if (!is_last_block(arrivals, gridDim.x, shared.last)) return;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += threads) {
    const bool is_key = i >= a.width;
    float sum = 0;
    for (unsigned block = 0; block < gridDim.x; ++block)
      sum += partial[std::int64_t{block} * columns + i];
    float& out = is_key ? key.out[i - a.width] : query.out[i];
    out = (is_key ? key.accumulate : query.accumulate) ? out + sum : sum;
  }
}

template <class T, class Op>
Arrays<T> arrays_of(const Op& op) {
  return {.in = op.in.template data<T>(),
          .query_weight = op.query_weight.template data<T>(),
          .key_weight = op.key_weight.template data<T>(),
          .query_heads = op.heads.query,
          .key_heads = op.heads.key_value,
          .width = static_cast<int>(op.in.dim(-1) / op.heads.in_row()),
          .epsilon = static_cast<float>(op.epsilon)};
}

}  // namespace

void launch_cuda(const QueryKeyNormForward& op, Stream stream) {
  dispatch(op.in.dtype, [&]<class T>() {
    launch(normalize<T>, {static_cast<unsigned>(op.in.rows())}, {threads}, 0, stream,
           arrays_of<T>(op), op.out.data<T>());
  });
}

void launch_cuda(const QueryKeyNormBackward& op, Stream stream) {
  const std::int64_t rows = op.in.rows();
  const std::int64_t rows_per_split =
      std::max(rows_per_block, std::int64_t{pieces(rows, max_blocks)});
  const std::int64_t splits = pieces(rows, rows_per_split);
  dispatch(op.in.dtype, [&]<class T>() {
    const Arrays<T> arrays = arrays_of<T>(op);
    launch(backward<T>, {static_cast<unsigned>(splits)}, {threads}, sizeof(Shared), stream, arrays,
           op.grad_in.data<T>(), op.grad_out.data<T>(),
           WeightGradient{op.grad_query_weight.data<float>(), op.accumulate_query},
           WeightGradient{op.grad_key_weight.data<float>(), op.accumulate_key},
           workspace<float>(stream, splits * 2 * arrays.width), queue_of(stream).arrivals, rows,
           rows_per_split);
  });
}

}  // namespace sluice
