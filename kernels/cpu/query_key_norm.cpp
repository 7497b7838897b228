#include "kernels/query_key_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t row_grain = 16;
/// Rows whose gradients of the weights are summed by one task. It is fixed, so that the bits do not
/// depend on the number of threads.
constexpr std::int64_t sum_grain = 64;

template <class T>
Accumulator<T> rstd_of(const T* in, std::int64_t width, double epsilon) {
  using A = Accumulator<T>;
  A squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t j = 0; j < width; ++j)
    squares += static_cast<A>(in[j]) * static_cast<A>(in[j]);
  return A{1} / std::sqrt(squares / static_cast<A>(width) + static_cast<A>(epsilon));
}

template <class T>
void forward_head(T* out, const T* in, const T* weight, std::int64_t width, double epsilon) {
  using A = Accumulator<T>;
  const A rstd = rstd_of(in, width, epsilon);
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j)
    store(out[j], static_cast<A>(in[j]) * rstd * static_cast<A>(weight[j]));
}

/// dx = rstd * (g - xhat * mean(g * xhat)) with g = dy * weight and xhat = x * rstd.
template <class T>
void backward_head(T* grad_in, Accumulator<T>* grad_weight, const T* grad_out, const T* in,
                   const T* weight, std::int64_t width, double epsilon) {
  using A = Accumulator<T>;
  const A rstd = rstd_of(in, width, epsilon);
  A dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t j = 0; j < width; ++j) {
    const A product = static_cast<A>(grad_out[j]) * static_cast<A>(in[j]) * rstd;
    grad_weight[j] += product;
    dot += product * static_cast<A>(weight[j]);
  }
  dot /= static_cast<A>(width);
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) {
    const A g = static_cast<A>(grad_out[j]) * static_cast<A>(weight[j]);
    store(grad_in[j], (g - static_cast<A>(in[j]) * rstd * dot) * rstd);
  }
}

template <class T>
void backward(const QueryKeyNormBackward& op) {
  using A = Accumulator<T>;
  const std::int64_t columns = op.in.dim(-1), width = columns / op.heads.in_row();
  const std::int64_t rows = op.in.rows(), pieces = (rows + sum_grain - 1) / sum_grain;
  // Each task has the sums of q's weight, then those of k's.
  std::vector<A> sums(static_cast<std::size_t>(pieces * 2 * width));
  parallel_ranges(rows, sum_grain, [&](std::int64_t begin, std::int64_t end) {
    A* const sum = sums.data() + begin / sum_grain * 2 * width;
    for (std::int64_t row = begin; row < end; ++row) {
      T* const grad_in = op.grad_in.data<T>() + row * columns;
      const T* const grad_out = op.grad_out.data<T>() + row * columns;
      const T* const in = op.in.data<T>() + row * columns;
      for (int head = 0; head < op.heads.query + op.heads.key_value; ++head) {
        const bool key = head >= op.heads.query;
        const std::int64_t at = head * width;
        backward_head(grad_in + at, sum + (key ? width : 0), grad_out + at, in + at,
                      (key ? op.key_weight : op.query_weight).data<T>(), width, op.epsilon);
      }
      const std::int64_t values = columns - op.heads.key_value * width;
      std::copy(grad_out + values, grad_out + columns, grad_in + values);
    }
  });
  const auto finish = [&](const View& gradient, std::int64_t first, bool accumulate) {
    A* const out = gradient.data<A>();
    for (std::int64_t j = 0; j < width; ++j) {
      A sum = accumulate ? out[j] : A{0};
      for (std::int64_t piece = 0; piece < pieces; ++piece)
        sum += sums[static_cast<std::size_t>(piece * 2 * width + first + j)];
      out[j] = sum;
    }
  };
  finish(op.grad_query_weight, 0, op.accumulate_query);
  finish(op.grad_key_weight, width, op.accumulate_key);
}

}  // namespace

void launch_cpu(const QueryKeyNormForward& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    const std::int64_t columns = op.in.dim(-1), width = columns / op.heads.in_row();
    parallel_ranges(op.in.rows(), row_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* const out = op.out.data<T>() + row * columns;
        const T* const in = op.in.data<T>() + row * columns;
        for (int head = 0; head < op.heads.query + op.heads.key_value; ++head)
          forward_head(out + head * width, in + head * width,
                       (head >= op.heads.query ? op.key_weight : op.query_weight).data<T>(), width,
                       op.epsilon);
        const std::int64_t values = columns - op.heads.key_value * width;
        std::copy(in + values, in + columns, out + values);
      }
    });
  });
}

void launch_cpu(const QueryKeyNormBackward& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() { backward<T>(op); });
}

}  // namespace sluice
