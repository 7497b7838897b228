#include "kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

/// Sums pieces in fp32 and the pieces' sums in fp64: accurate to 1e-7 and still vectorized.
template <class T>
double sum_of_squares(const T* in, std::int64_t count) {
  using A = Accumulator<T>;
  constexpr std::int64_t stretch = 1024;
  double sum = 0;
  for (std::int64_t first = 0; first < count; first += stretch) {
    const std::int64_t last = std::min(first + stretch, count);
    A part = 0;
#pragma omp simd reduction(+ : part)
    for (std::int64_t i = first; i < last; ++i) {
      const A x = static_cast<A>(in[i]);
      part += x * x;
    }
    sum += static_cast<double>(part);
  }
  return sum;
}

}  // namespace

void launch_cpu(const Sum& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const T* in = op.in.data<T>();
    T* out = op.out.data<T>();
    double sum = 0;
    for (std::int64_t i = 0; i < op.in.size(); ++i)
      sum += static_cast<double>(static_cast<A>(in[i]));
    sum *= op.scale;
    if (op.accumulate) sum += static_cast<double>(static_cast<A>(*out));
    store(*out, static_cast<A>(sum));
  });
}

void launch_cpu(const ColumnSum& op) {
  constexpr std::int64_t grain = 128;
  dispatch_floating(op.in.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t columns = op.in.dim(-1);
    const std::int64_t rows = op.in.rows(), stride = op.in.stride(0);
    const T* in = op.in.data<T>();
    A* out = op.out.data<A>();
    const bool accumulate = op.accumulate;
    parallel_ranges(columns, grain, [=](std::int64_t begin, std::int64_t end) {
      A sum[grain] = {};
      for (std::int64_t row = 0; row < rows; ++row) {
        const T* line = in + row * stride + begin;
#pragma omp simd
        for (std::int64_t j = 0; j < end - begin; ++j)
          sum[j] += static_cast<A>(line[j]);
      }
      for (std::int64_t j = 0; j < end - begin; ++j)
        out[begin + j] = accumulate ? out[begin + j] + sum[j] : sum[j];
    });
  });
}

void launch_cpu(const SquaredNorm& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    const T* in = op.in.data<T>();
    double* partial = op.partial.data<double>();
    const std::int64_t block = op.block;
    parallel_ranges(op.in.size(), block, [=](std::int64_t begin, std::int64_t end) {
      partial[begin / block] = sum_of_squares(in + begin, end - begin);
    });
  });
}

void launch_cpu(const SquaredNormBatch& op) {
  for (const SquaredNorm& norm : op.norms)
    launch_cpu(norm);
}

void launch_cpu(const ClipFactor& op) {
  const double* partial = op.partial.data<double>();
  double sum = 0;
  for (std::int64_t i = 0; i < op.partial.size(); ++i)
    sum += partial[i];
  const double norm = std::sqrt(sum) / op.loss_scale;
  *op.norm.data<double>() = norm;
  double factor = op.limit > 0 ? std::min(1.0, op.limit / (norm + 1e-6)) : 1.0;
  factor = std::isfinite(norm) ? factor / op.loss_scale : std::numeric_limits<double>::quiet_NaN();
  dispatch_floating(op.factor.dtype, [&]<class T>() {
    store(*op.factor.data<T>(), static_cast<Accumulator<T>>(factor));
  });
}

}  // namespace sluice
