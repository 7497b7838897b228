#include "kernels/norm.h"

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

// `centred`: LayerNorm, which subtracts the mean; else RMSNorm.

template <class T, bool centred>
void forward_row(const NormForward& op, std::int64_t row) {
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
  if constexpr (centred) {
#pragma omp simd reduction(+ : mean)
    for (std::int64_t j = 0; j < width; ++j)
      mean += static_cast<A>(in[j]);
    mean /= static_cast<A>(width);
    op.mean.data<A>()[row] = mean;
  }
  A variance = 0;
#pragma omp simd reduction(+ : variance)
  for (std::int64_t j = 0; j < width; ++j) {
    const A deviation = static_cast<A>(in[j]) - mean;
    variance += deviation * deviation;
  }
  const A rstd = A{1} / std::sqrt(variance / static_cast<A>(width) + static_cast<A>(op.epsilon));
  const T* weight = op.weight.data<T>();
  T* out = op.out.data<T>() + row * width;
  if (op.bias) {
    const T* bias = op.bias.data<T>();
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j)
      store(out[j], (static_cast<A>(in[j]) - mean) * rstd * static_cast<A>(weight[j]) +
                        static_cast<A>(bias[j]));
  } else {
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j)
      store(out[j], (static_cast<A>(in[j]) - mean) * rstd * static_cast<A>(weight[j]));
  }
  op.rstd.data<A>()[row] = rstd;
}

/// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * weight. RMSNorm has no mean(g).
template <class T, bool centred>
void backward_row(const NormBackward& op, std::int64_t row) {
  using A = Accumulator<T>;
  const std::int64_t width = op.grad_out.dim(-1);
  const T* in = op.normalized_in.data<T>() + row * width;
  const T* grad_out = op.grad_out.data<T>() + row * width;
  const T* grad_sum = op.grad_sum ? op.grad_sum.data<T>() + row * width : nullptr;
  const T* weight = op.weight.data<T>();
  T* grad_in = op.grad_in.data<T>() + row * width;
  const A mean = centred ? op.mean.data<A>()[row] : A{0};
  const A rstd = op.rstd.data<A>()[row];
  A sum = 0;
  A dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (std::int64_t j = 0; j < width; ++j) {
    const A g = static_cast<A>(grad_out[j]) * static_cast<A>(weight[j]);
    if constexpr (centred) sum += g;
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
template <class T, bool centred>
void backward_columns(const NormBackward& op, std::int64_t begin, std::int64_t end) {
  using A = Accumulator<T>;
  const std::int64_t width = op.grad_out.dim(-1);
  A weight_sum[column_grain] = {};
  A bias_sum[column_grain] = {};
  for (std::int64_t row = 0; row < op.grad_out.rows(); ++row) {
    const T* in = op.normalized_in.data<T>() + row * width + begin;
    const T* grad_out = op.grad_out.data<T>() + row * width + begin;
    const A mean = centred ? op.mean.data<A>()[row] : A{0};
    const A rstd = op.rstd.data<A>()[row];
#pragma omp simd
    for (std::int64_t j = 0; j < end - begin; ++j) {
      const A g = static_cast<A>(grad_out[j]);
      weight_sum[j] += g * ((static_cast<A>(in[j]) - mean) * rstd);
      if constexpr (centred) bias_sum[j] += g;
    }
  }
  const auto finish = [=](const View& gradient, const A* sums, bool accumulate) {
    A* const out = gradient.data<A>() + begin;
    for (std::int64_t j = 0; j < end - begin; ++j)
      out[j] = accumulate ? out[j] + sums[j] : sums[j];
  };
  finish(op.grad_weight, weight_sum, op.accumulate_weight);
  if (op.grad_bias) finish(op.grad_bias, bias_sum, op.accumulate_bias);
}

/// Calls `body.operator()<T, centred>()`.
template <class Body>
void dispatch_norm(DType dtype, const View& mean, Body&& body) {
  dispatch_floating(dtype, [&]<class T>() {
    if (mean) return body.template operator()<T, true>();
    body.template operator()<T, false>();
  });
}

}  // namespace

void launch_cpu(const NormForward& op) {
  dispatch_norm(op.in.dtype, op.mean, [&]<class T, bool centred>() {
    parallel_ranges(op.in.rows(), row_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        forward_row<T, centred>(op, row);
    });
  });
}

void launch_cpu(const NormBackward& op) {
  dispatch_norm(op.grad_out.dtype, op.mean, [&]<class T, bool centred>() {
    // Columns come first: grad_in may be the buffer of grad_sum but never of grad_out.
    parallel_ranges(op.grad_out.dim(-1), column_grain, [&](std::int64_t begin, std::int64_t end) {
      backward_columns<T, centred>(op, begin, end);
    });
    parallel_ranges(op.grad_out.rows(), row_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        backward_row<T, centred>(op, row);
    });
  });
}

}  // namespace sluice
