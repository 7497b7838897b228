#include "kernels/copy_columns.h"

#include <algorithm>

#include "kernels/base/dtype.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {

void launch_cpu(const CopyColumns& op) {
  constexpr std::int64_t row_grain = 64;
  dispatch_floating(op.in.dtype, [&]<class T>() {
    const T* const in = op.in.data<T>() + op.in_first;
    T* const out = op.out.data<T>() + op.out_first;
    cpu::parallel_ranges(op.in.rows(), row_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        std::copy_n(in + row * op.in.dim(-1), op.columns, out + row * op.out.dim(-1));
    });
  });
}

}  // namespace sluice
