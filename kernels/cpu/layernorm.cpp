#include "kernels/layernorm.h"

#include <cmath>

#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

/// Rows per task, and columns per task for sums down the rows.
constexpr std::int64_t row_grain = 16;
constexpr std::int64_t column_grain = 64;

template <class T>
void forward_row(const LayerNormForward& op, std::int64_t row) {
  using A = Accumulator<T>;
  const std::int64_t width = op.in.dim(-1);
  const T* in = op.in.data<T>() + row * width;
  if (op.branch) {
    const T* branch = op.branch.data<T>() + row * width;
    T* sum = op.sum.data<T>() + row * width;
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j)
      store(sum[j], static_cast<A>(in[j]) + static_cast<A>(branch[j]));
    in = sum;
  }
  A mean = 0;
#pragma omp simd reduction(+ : mean)
  for (std::int64_t j = 0; j < width; ++j)
    mean += static_cast<A>(in[j]);
  mean /= static_cast<A>(width);
  A variance = 0;
#pragma omp simd reduction(+ : variance)
  for (std::int64_t j = 0; j < width; ++j) {
    const A centred = static_cast<A>(in[j]) - mean;
    variance += centred * centred;
  }
  const A rstd = A{1} / std::sqrt(variance / static_cast<A>(width) + static_cast<A>(op.epsilon));
  const T* weight = op.weight.data<T>();
  const T* bias = op.bias.data<T>();
  T* out = op.out.data<T>() + row * width;
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j)
    store(out[j], (static_cast<A>(in[j]) - mean) * rstd * static_cast<A>(weight[j]) +
                      static_cast<A>(bias[j]));
  op.mean.data<A>()[row] = mean;
  op.rstd.data<A>()[row] = rstd;
}

/// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * weight.
template <class T>
void backward_row(const LayerNormBackward& op, std::int64_t row) {
  using A = Accumulator<T>;
  const std::int64_t width = op.grad_out.dim(-1);
  const T* in = op.normalized_in.data<T>() + row * width;
  const T* grad_out = op.grad_out.data<T>() + row * width;
  const T* grad_sum = op.grad_sum ? op.grad_sum.data<T>() + row * width : nullptr;
  const T* weight = op.weight.data<T>();
  T* grad_in = op.grad_in.data<T>() + row * width;
  const A mean = op.mean.data<A>()[row];
  const A rstd = op.rstd.data<A>()[row];
  A sum = 0;
  A dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (std::int64_t j = 0; j < width; ++j) {
    const A g = static_cast<A>(grad_out[j]) * static_cast<A>(weight[j]);
    sum += g;
    dot += g * (static_cast<A>(in[j]) - mean);
  }
  sum /= static_cast<A>(width);
  dot *= rstd / static_cast<A>(width);
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) {
    const A normalized = (static_cast<A>(in[j]) - mean) * rstd;
    const A g = static_cast<A>(grad_out[j]) * static_cast<A>(weight[j]);
    A result = (g - sum - normalized * dot) * rstd;
    if (grad_sum != nullptr) result += static_cast<A>(grad_sum[j]);
    store(grad_in[j], result);
  }
}

/// Computes the gradients of weight and bias for a few columns, summed down the rows in order.
/// There are no partial sums per thread, so the bits do not depend on the number of threads.
template <class T>
void backward_columns(const LayerNormBackward& op, std::int64_t begin, std::int64_t end) {
  using A = Accumulator<T>;
  const std::int64_t width = op.grad_out.dim(-1);
  A weight_sum[column_grain] = {};
  A bias_sum[column_grain] = {};
  for (std::int64_t row = 0; row < op.grad_out.rows(); ++row) {
    const T* in = op.normalized_in.data<T>() + row * width + begin;
    const T* grad_out = op.grad_out.data<T>() + row * width + begin;
    const A mean = op.mean.data<A>()[row];
    const A rstd = op.rstd.data<A>()[row];
#pragma omp simd
    for (std::int64_t j = 0; j < end - begin; ++j) {
      const A g = static_cast<A>(grad_out[j]);
      weight_sum[j] += g * ((static_cast<A>(in[j]) - mean) * rstd);
      bias_sum[j] += g;
    }
  }
  A* grad_weight = op.grad_weight.data<A>() + begin;
  A* grad_bias = op.grad_bias.data<A>() + begin;
  for (std::int64_t j = 0; j < end - begin; ++j) {
    grad_weight[j] = op.accumulate_weight ? grad_weight[j] + weight_sum[j] : weight_sum[j];
    grad_bias[j] = op.accumulate_bias ? grad_bias[j] + bias_sum[j] : bias_sum[j];
  }
}

}  // namespace

void launch_cpu(const LayerNormForward& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    parallel_ranges(op.in.rows(), row_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        forward_row<T>(op, row);
    });
  });
}

void launch_cpu(const LayerNormBackward& op) {
  dispatch_floating(op.grad_out.dtype, [&]<class T>() {
    // Columns come first: grad_in may be the buffer of grad_sum but never of grad_out.
    parallel_ranges(op.grad_out.dim(-1), column_grain, [&](std::int64_t begin, std::int64_t end) {
      backward_columns<T>(op, begin, end);
    });
    parallel_ranges(op.grad_out.rows(), row_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        backward_row<T>(op, row);
    });
  });
}

}  // namespace sluice
