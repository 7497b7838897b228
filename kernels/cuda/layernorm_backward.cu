#include "kernels/layernorm.h"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace sluice {
namespace {

using namespace cuda;

template <class T>
struct BackwardArrays {
  T* grad_in;
  const T* grad_out;
  const T* grad_sum;  ///< null if no other gradient reached the sum
  const T* in;
  const float* mean;
  const float* rstd;
  const T* weight;
};

constexpr int max_warps = 16;
/// Rows per iteration of a block, with one barrier: a thread has two loads of 16 bytes of each
/// under way, then three.
constexpr int rows_at_once = 4;
/// Rows per block, unless there are many rows: a few blocks for each multiprocessor at the sizes of
/// GPT-2, so that one computes while others wait for memory.
constexpr std::int64_t rows_per_block = 4 * rows_at_once;
/// Blocks at most, so that all are on an H100 or H200 at one time: each of its 132 multiprocessors
/// has registers for six blocks of width 768, and a second, smaller wave costs as much as the
/// first.
constexpr std::int64_t max_blocks = 512;
constexpr std::int64_t max_partials = std::int64_t{1} << 20;  // of either sum, in the workspace

struct Shared {
  struct {
    float sum, dot;
  } sums[2][max_warps][rows_at_once];
};

/// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * weight. Sums the gradients of
/// weight and bias in the same pass over memory. A thread owns N columns; a block loops down its
/// part of the rows. partial: [splits, 2 * width], the weight's before the bias's.
template <class T, int N>
__global__ void __launch_bounds__(max_warps* warp_size)
    backward_rows(BackwardArrays<T> a, float* partial, std::int64_t rows, std::int64_t width,
                  std::int64_t rows_per_split) {
  auto& shared = shared_memory<Shared>();
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int warps = static_cast<int>(blockDim.x) / warp_size;
  const std::int64_t column = static_cast<std::int64_t>(threadIdx.x) * N;
  const bool active = column < width;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * rows_per_split;
  const std::int64_t end = first + rows_per_split < rows ? first + rows_per_split : rows;
  const float inverse_width = 1.0f / static_cast<float>(width);
  // Threads beyond the last column read the first ones and count them zero times.
  float weight[N] = {}, grad_weight[N] = {}, grad_bias[N] = {};
  if (active) load_floats(weight, a.weight + column);
  std::int64_t at = first * width + (active ? column : 0);
  int parity = 0;  // two sets of sums need only one barrier per call
  // Each of its two passes over the rows has all loads before their first use.
  const auto advance = [&]<int count>(std::int64_t row) {
    Packed<T, N> grads[count], ins[count], others[count] = {};
    float mean[count], rstd[count];
    const auto load_rows = [&] {
#pragma unroll
      for (int r = 0; r < count; ++r) {
        grads[r] = load_packed<N>(a.grad_out + at + r * width);
        ins[r] = load_packed<N>(a.in + at + r * width);
      }
    };
    load_rows();
#pragma unroll
    for (int r = 0; r < count; ++r) {
      mean[r] = a.mean[row + r];
      rstd[r] = a.rstd[row + r];
    }
    const auto normalized = [&](int r, int i) { return (ins[r][i] - mean[r]) * rstd[r]; };
    float sums[count] = {}, dots[count] = {};
#pragma unroll
    for (int r = 0; r < count; ++r)
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float grad = grads[r][i], weighted = grad * weight[i];
        grad_bias[i] += grad;
        grad_weight[i] += grad * normalized(r, i);
        sums[r] += weighted;
        dots[r] += weighted * normalized(r, i);
      }
#pragma unroll
    for (int r = 0; r < count; ++r) {
      const float sum = warp_sum(sums[r]), dot = warp_sum(dots[r]);
      if (lane == 0) shared.sums[parity][warp][r] = {sum, dot};
    }
    __syncthreads();
    load_rows();  // again, from the nearest cache: held all the time, they would spill
    if (a.grad_sum != nullptr) {
#pragma unroll
      for (int r = 0; r < count; ++r)
        others[r] = load_packed<N>(a.grad_sum + at + r * width);
    }
#pragma unroll
    for (int r = 0; r < count; ++r) {
      float sum = 0, dot = 0;
#pragma unroll 4
      for (int w = 0; w < warps; ++w) {
        sum += shared.sums[parity][w][r].sum;
        dot += shared.sums[parity][w][r].dot;
      }
      sum *= inverse_width;
      dot *= inverse_width;
      float grad_in[N];
#pragma unroll
      for (int i = 0; i < N; ++i)
        grad_in[i] =
            (grads[r][i] * weight[i] - sum - normalized(r, i) * dot) * rstd[r] + others[r][i];
      if (active) store_floats(a.grad_in + at + r * width, grad_in);
    }
    at += count * width;
    parity ^= 1;
  };
  std::int64_t row = first;
  for (; row + rows_at_once <= end; row += rows_at_once)
    advance.template operator()<rows_at_once>(row);
  for (; row < end; ++row)
    advance.template operator()<1>(row);
  if (!active) return;
  float* mine = partial + static_cast<std::int64_t>(blockIdx.x) * 2 * width + column;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    mine[i] = grad_weight[i];
    mine[width + i] = grad_bias[i];
  }
}

/// A sum of columns, and whether it is added to what is there.
struct ColumnTotals {
  float* out;
  bool accumulate;
};
constexpr int finish_warps = 32;  // as many loads at once as possible: there are few columns
struct FinishSums {
  float sums[finish_warps][warp_size];
};

/// Adds the partial sums of weight and bias in a fixed order. A block has 32 columns; its warps
/// take the partial sums in turn, and the first warp adds what they have. A single block, the last
/// of those above, would have 3 MB of partial sums to read for 8192 x 768: longer than a launch.
__global__ void __launch_bounds__(finish_warps* warp_size)
    finish(ColumnTotals weight, ColumnTotals bias, const float* partial, std::int64_t splits,
           std::int64_t width) {
  auto& shared = shared_memory<FinishSums>();
  const int lane = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(threadIdx.y);
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * warp_size + lane;
  float sum = 0;
  if (at < 2 * width) {
#pragma unroll 8
    for (std::int64_t s = warp; s < splits; s += finish_warps)
      sum += partial[s * 2 * width + at];
  }
  shared.sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || at >= 2 * width) return;
#pragma unroll
  for (int w = 1; w < finish_warps; ++w)
    sum += shared.sums[w][lane];
  const ColumnTotals& total = at < width ? weight : bias;
  float& out = total.out[at < width ? at : at - width];
  out = total.accumulate ? out + sum : sum;
}

// Kernels for any width and alignment: one warp per row for dx, one thread per column for sums.

constexpr int row_warps = 4;
constexpr int row_threads = row_warps * warp_size;

template <class T>
__global__ void __launch_bounds__(row_threads)
    backward_any(BackwardArrays<T> a, std::int64_t rows, std::int64_t width) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * row_warps + threadIdx.x / warp_size;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const std::int64_t start = row * width;
  const float mean = a.mean[row];
  const float rstd = a.rstd[row];
  float sum = 0, dot = 0;
  for (std::int64_t j = lane; j < width; j += warp_size) {
    const float g = to_float(a.grad_out[start + j]) * to_float(a.weight[j]);
    sum += g;
    dot += g * (to_float(a.in[start + j]) - mean) * rstd;
  }
  sum = warp_sum(sum) / static_cast<float>(width);
  dot = warp_sum(dot) / static_cast<float>(width);
  for (std::int64_t j = lane; j < width; j += warp_size) {
    const float g = to_float(a.grad_out[start + j]) * to_float(a.weight[j]);
    const float normalized = (to_float(a.in[start + j]) - mean) * rstd;
    const float other = a.grad_sum != nullptr ? to_float(a.grad_sum[start + j]) : 0.0f;
    a.grad_in[start + j] = from_float<T>((g - sum - normalized * dot) * rstd + other);
  }
}

template <class T>
__global__ void __launch_bounds__(row_threads)
    columns_any(BackwardArrays<T> a, float* partial, std::int64_t rows, std::int64_t width,
                std::int64_t rows_per_split) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= width) return;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * rows_per_split;
  const std::int64_t end = first + rows_per_split < rows ? first + rows_per_split : rows;
  float grad_weight = 0, grad_bias = 0;
  for (std::int64_t row = first; row < end; ++row) {
    const float g = to_float(a.grad_out[row * width + column]);
    grad_weight += g * (to_float(a.in[row * width + column]) - a.mean[row]) * a.rstd[row];
    grad_bias += g;
  }
  float* mine = partial + static_cast<std::int64_t>(blockIdx.y) * 2 * width + column;
  mine[0] = grad_weight;
  mine[width] = grad_bias;
}

}  // namespace

void launch_cuda(const LayerNormBackward& op, Stream stream) {
  const std::int64_t rows = op.grad_out.rows();
  const std::int64_t width = op.grad_out.dim(-1);
  const auto rows_for = [](std::int64_t elements, std::int64_t limit) {
    return std::int64_t{pieces(elements, limit * rows_at_once)} * rows_at_once;
  };
  const std::int64_t rows_per_split =
      std::max({rows_per_block, rows_for(rows, max_blocks), rows_for(rows * width, max_partials)});
  const std::int64_t splits = pieces(rows, rows_per_split);
  auto* partial = workspace<float>(stream, splits * 2 * width);
  dispatch(op.grad_out.dtype, [&]<class T>() {
    const BackwardArrays<T> arrays{.grad_in = op.grad_in.data<T>(),
                                   .grad_out = op.grad_out.data<T>(),
                                   .grad_sum = op.grad_sum ? op.grad_sum.data<T>() : nullptr,
                                   .in = op.normalized_in.data<T>(),
                                   .mean = op.mean.data<float>(),
                                   .rstd = op.rstd.data<float>(),
                                   .weight = op.weight.data<T>()};
    constexpr int packed = wide<T>;
    const std::int64_t warps = (width / packed + warp_size - 1) / warp_size;
    if (width % packed == 0 && warps <= max_warps &&
        aligned(16, {op.grad_in, op.grad_out, op.grad_sum, op.normalized_in, op.weight})) {
      launch(backward_rows<T, packed>, {static_cast<unsigned>(splits)},
             {static_cast<unsigned>(warps * warp_size)}, sizeof(Shared), stream, arrays, partial,
             rows, width, rows_per_split);
      return;
    }
    // Columns come first: grad_in may be the buffer of grad_sum, but never of grad_out.
    launch(columns_any<T>, {pieces(width, row_threads), static_cast<unsigned>(splits)},
           {row_threads}, 0, stream, arrays, partial, rows, width, rows_per_split);
    launch(backward_any<T>, {pieces(rows, row_warps)}, {row_threads}, 0, stream, arrays, rows,
           width);
  });
  launch(finish, {pieces(2 * width, warp_size)}, {warp_size, finish_warps}, sizeof(FinishSums),
         stream, ColumnTotals{op.grad_weight.data<float>(), op.accumulate_weight},
         ColumnTotals{op.grad_bias.data<float>(), op.accumulate_bias}, partial, splits, width);
}

}  // namespace sluice
