#include "kernels/norm.h"

#include <algorithm>

#include "kernels/cuda/last_block.h"
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

/// Partial sums that a block adds at one level of their tree.
constexpr unsigned fan_in = 8;

struct Shared {
  struct {
    float sum, dot;
  } sums[2][max_warps][rows_at_once];
  int last;
};

/// A sum of columns, and whether it is added to what is there.
struct ColumnTotals {
  float* out;  ///< null if nobody wants it
  bool accumulate;
};

// `centred`: LayerNorm; else RMSNorm, which has no mean and whose bias gets no gradient.

/// Sums of each column: the gradients of weight and bias, or of the weight alone.
template <bool centred>
constexpr int column_sums = centred ? 2 : 1;

/// The sums over parts of the rows, and where they go.
struct PartialSums {
  ColumnTotals weight, bias;
  float* partial;  ///< [parts, column_sums * width], the weight's before the bias's
  int* arrivals;
  std::int64_t width;
};

/// Adds the sums of all parts, `count` columns from `first_column` on, of which this block has
/// stored those of part `index`. The order is that of a tree: of `children` neighbours the block
/// that ends last adds them, and takes part in the next level with the result. A single last block
/// would have 3 MB to read for 8192 x 768.
template <int N, bool centred>
__device__ __forceinline__ void add_parts(const PartialSums& a, std::int64_t first_column,
                                          std::int64_t count, unsigned index, unsigned parts,
                                          unsigned children, int& last) {
  int* arrivals = a.arrivals;
  constexpr int each = column_sums<centred>;
  // Without a bias its sums, which are the second half, go nowhere.
  const std::int64_t wanted = (centred && a.bias.out == nullptr ? 1 : each) * count;
  std::int64_t distance = each * a.width;  // between neighbours of a level
  for (;;) {
    const unsigned groups = (parts + children - 1) / children, group = index / children;
    const unsigned first = group * children;
    const unsigned members = parts - first < children ? parts - first : children;
    if (!is_last_block(arrivals + group, members, last)) return;
    for (std::int64_t i = std::int64_t{threadIdx.x} * N; i < wanted;
         i += std::int64_t{blockDim.x} * N) {
      const bool bias = centred && i >= count;
      const std::int64_t column = first_column + (bias ? i - count : i);
      float* const mine = a.partial + first * distance + (bias ? a.width : 0) + column;
      float sum[N] = {};
      for (unsigned child = 0; child < members; child += fan_in) {
        float values[fan_in][N] = {};  // all loads come before their first use
#pragma unroll
        for (unsigned c = 0; c < fan_in; ++c)
          if (child + c < members) load_floats(values[c], mine + (child + c) * distance);
#pragma unroll
        for (unsigned c = 0; c < fan_in; ++c)
#pragma unroll
          for (int j = 0; j < N; ++j)
            sum[j] += values[c][j];
      }
      if (groups > 1) {
        store_floats(mine, sum);
        continue;
      }
      const ColumnTotals& total = bias ? a.bias : a.weight;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        float& out = total.out[column + j];
        out = total.accumulate ? out + sum[j] : sum[j];
      }
    }
    if (groups == 1) return;
    arrivals += groups;
    distance *= children;
    index = group;
    parts = groups;
  }
}

/// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * weight; RMSNorm has no mean(g).
/// Sums the gradients of weight and bias in the same pass over memory. A thread owns N columns; a
/// block loops down its part of the rows.
template <class T, int N, bool centred>
__global__ void __launch_bounds__(max_warps* warp_size)
    backward_rows(BackwardArrays<T> a, PartialSums sums_of_parts, std::int64_t rows,
                  std::int64_t rows_per_split) {
  auto& shared = shared_memory<Shared>();
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int warps = static_cast<int>(blockDim.x) / warp_size;
  const std::int64_t width = sums_of_parts.width;
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
      mean[r] = centred ? a.mean[row + r] : 0.0f;
      rstd[r] = a.rstd[row + r];
    }
    const auto normalized = [&](int r, int i) { return (ins[r][i] - mean[r]) * rstd[r]; };
    float sums[count] = {}, dots[count] = {};
#pragma unroll
    for (int r = 0; r < count; ++r)
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float grad = grads[r][i], weighted = grad * weight[i];
        if constexpr (centred) {
          grad_bias[i] += grad;
          sums[r] += weighted;
        }
        grad_weight[i] += grad * normalized(r, i);
        dots[r] += weighted * normalized(r, i);
      }
#pragma unroll
    for (int r = 0; r < count; ++r) {
      const float sum = centred ? warp_sum(sums[r]) : 0.0f, dot = warp_sum(dots[r]);
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
        if constexpr (centred) sum += shared.sums[parity][w][r].sum;
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
  if (active) {
    float* const mine =
        sums_of_parts.partial + std::int64_t{blockIdx.x} * column_sums<centred> * width + column;
    store_floats(mine, grad_weight);
    if constexpr (centred) store_floats(mine + width, grad_bias);
  }
  add_parts<4, centred>(sums_of_parts, 0, width, blockIdx.x, gridDim.x, fan_in, shared.last);
}

// Kernels for any width and alignment: one warp per row for dx, one thread per column for sums.

constexpr int row_warps = 4;
constexpr int row_threads = row_warps * warp_size;

template <class T, bool centred>
__global__ void __launch_bounds__(row_threads)
    backward_any(BackwardArrays<T> a, std::int64_t rows, std::int64_t width) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * row_warps + threadIdx.x / warp_size;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const std::int64_t start = row * width;
  const float mean = centred ? a.mean[row] : 0.0f;
  const float rstd = a.rstd[row];
  float sum = 0, dot = 0;
  for (std::int64_t j = lane; j < width; j += warp_size) {
    const float g = to_float(a.grad_out[start + j]) * to_float(a.weight[j]);
    if constexpr (centred) sum += g;
    dot += g * (to_float(a.in[start + j]) - mean) * rstd;
  }
  if constexpr (centred) sum = warp_sum(sum) / static_cast<float>(width);
  dot = warp_sum(dot) / static_cast<float>(width);
  for (std::int64_t j = lane; j < width; j += warp_size) {
    const float g = to_float(a.grad_out[start + j]) * to_float(a.weight[j]);
    const float normalized = (to_float(a.in[start + j]) - mean) * rstd;
    const float other = a.grad_sum != nullptr ? to_float(a.grad_sum[start + j]) : 0.0f;
    a.grad_in[start + j] = from_float<T>((g - sum - normalized * dot) * rstd + other);
  }
}

template <class T, bool centred>
__global__ void __launch_bounds__(row_threads)
    columns_any(BackwardArrays<T> a, PartialSums sums_of_parts, std::int64_t rows,
                std::int64_t rows_per_split) {
  const std::int64_t width = sums_of_parts.width;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * rows_per_split;
  const std::int64_t end = first + rows_per_split < rows ? first + rows_per_split : rows;
  float grad_weight = 0, grad_bias = 0;
  for (std::int64_t row = first; row < end && column < width; ++row) {
    const float g = to_float(a.grad_out[row * width + column]);
    const float mean = centred ? a.mean[row] : 0.0f;
    grad_weight += g * (to_float(a.in[row * width + column]) - mean) * a.rstd[row];
    if constexpr (centred) grad_bias += g;
  }
  if (column < width) {
    float* const mine =
        sums_of_parts.partial + std::int64_t{blockIdx.y} * column_sums<centred> * width + column;
    mine[0] = grad_weight;
    if constexpr (centred) mine[width] = grad_bias;
  }
  // The blocks of these columns have one counter, so one of them adds all parts.
  sums_of_parts.arrivals += blockIdx.x;
  const std::int64_t first_column = std::int64_t{blockIdx.x} * row_threads;
  const std::int64_t count =
      width - first_column < row_threads ? width - first_column : row_threads;
  add_parts<1, centred>(sums_of_parts, first_column, count, blockIdx.y, gridDim.y, gridDim.y,
                        shared_memory<int>());
}

}  // namespace

void launch_cuda(const NormBackward& op, Stream stream) {
  const std::int64_t rows = op.grad_out.rows();
  const std::int64_t width = op.grad_out.dim(-1);
  const auto rows_for = [](std::int64_t elements, std::int64_t limit) {
    return std::int64_t{pieces(elements, limit * rows_at_once)} * rows_at_once;
  };
  std::int64_t rows_per_split =
      std::max({rows_per_block, rows_for(rows, max_blocks), rows_for(rows * width, max_partials)});
  if (width > max_arrivals * row_threads) rows_per_split = rows;  // see columns_any
  const std::int64_t splits = pieces(rows, rows_per_split);
  const auto with = [&]<class T, bool centred>() {
    const PartialSums sums{
        .weight = {op.grad_weight.data<float>(), op.accumulate_weight},
        .bias = {op.grad_bias ? op.grad_bias.data<float>() : nullptr, op.accumulate_bias},
        .partial = workspace<float>(stream, splits * column_sums<centred> * width),
        .arrivals = queue_of(stream).arrivals,
        .width = width};
    const BackwardArrays<T> arrays{.grad_in = op.grad_in.data<T>(),
                                   .grad_out = op.grad_out.data<T>(),
                                   .grad_sum = op.grad_sum ? op.grad_sum.data<T>() : nullptr,
                                   .in = op.normalized_in.data<T>(),
                                   .mean = centred ? op.mean.data<float>() : nullptr,
                                   .rstd = op.rstd.data<float>(),
                                   .weight = op.weight.data<T>()};
    constexpr int packed = wide<T>;
    const std::int64_t warps = (width / packed + warp_size - 1) / warp_size;
    if (width % packed == 0 && warps <= max_warps &&
        aligned(16, {op.grad_in, op.grad_out, op.grad_sum, op.normalized_in, op.weight})) {
      launch(backward_rows<T, packed, centred>, {static_cast<unsigned>(splits)},
             {static_cast<unsigned>(warps * warp_size)}, sizeof(Shared), stream, arrays, sums, rows,
             rows_per_split);
      return;
    }
    // Columns come first: grad_in may be the buffer of grad_sum, but never of grad_out.
    launch(columns_any<T, centred>, {pieces(width, row_threads), static_cast<unsigned>(splits)},
           {row_threads}, sizeof(int), stream, arrays, sums, rows, rows_per_split);
    launch(backward_any<T, centred>, {pieces(rows, row_warps)}, {row_threads}, 0, stream, arrays,
           rows, width);
  };
  dispatch(op.grad_out.dtype, [&]<class T>() {
    if (op.mean) return with.template operator()<T, true>();
    with.template operator()<T, false>();
  });
}

}  // namespace sluice
