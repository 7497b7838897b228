#include "kernels/head_order.h"

#include <algorithm>

#include "kernels/base/dtype.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {

void launch_cpu(const HeadOrder& op) {
  constexpr std::int64_t row_grain = 16;
  dispatch_floating(op.in.dtype, [&]<class T>() {
    const std::int64_t columns = op.in.dim(-1), heads = op.heads, width = columns / (3 * heads);
    cpu::parallel_ranges(op.in.rows(), row_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const in = op.in.data<T>() + row * columns;
        T* const out = op.out.data<T>() + row * columns;
        for (std::int64_t head = 0; head < heads; ++head)
          for (std::int64_t part = 0; part < 3; ++part) {
            const std::int64_t together = (head * 3 + part) * width;
            const std::int64_t apart = (part * heads + head) * width;
            std::copy_n(in + (op.inverse ? apart : together), width,
                        out + (op.inverse ? together : apart));
          }
      }
    });
  });
}

}  // namespace sluice
