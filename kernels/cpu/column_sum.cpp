#include "kernels/column_sum.h"

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {

void launch_cpu(const ColumnSum& op) {
  using namespace cpu;
  constexpr std::int64_t grain = 128;
  dispatch_floating(op.in.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t columns = op.in.dim(-1);
    const std::int64_t rows = op.in.rows();
    const T* in = op.in.data<T>();
    A* out = op.out.data<A>();
    const bool accumulate = op.accumulate;
    parallel_ranges(columns, grain, [=](std::int64_t begin, std::int64_t end) {
      A sum[grain] = {};
      for (std::int64_t row = 0; row < rows; ++row) {
        const T* line = in + row * columns + begin;
#pragma omp simd
        for (std::int64_t j = 0; j < end - begin; ++j)
          sum[j] += static_cast<A>(line[j]);
      }
      for (std::int64_t j = 0; j < end - begin; ++j)
        out[begin + j] = accumulate ? out[begin + j] + sum[j] : sum[j];
    });
  });
}

}  // namespace sluice
