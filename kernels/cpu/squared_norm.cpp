#include "kernels/squared_norm.h"

#include <algorithm>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {

void launch_cpu(const SquaredNorm& op) {
  using namespace cpu;
  dispatch_floating(op.in.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const T* in = op.in.data<T>();
    double* partial = op.partial.data<double>();
    parallel_ranges(op.in.size(), SquaredNorm::block, [=](std::int64_t begin, std::int64_t end) {
      // fp32 sums over short stretches, fp64 over the stretches: exact enough and still SIMD.
      constexpr std::int64_t stretch = 1024;
      double sum = 0;
      for (std::int64_t i = begin; i < end; i += stretch) {
        A part = 0;
#pragma omp simd reduction(+ : part)
        for (std::int64_t j = i; j < std::min(i + stretch, end); ++j) {
          const A x = static_cast<A>(in[j]);
          part += x * x;
        }
        sum += static_cast<double>(part);
      }
      partial[begin / SquaredNorm::block] = sum;
    });
  });
}

}  // namespace sluice
