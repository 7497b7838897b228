#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {

void launch_cpu(const CrossEntropy& op) {
  using namespace cpu;
  dispatch_floating(op.logits.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t vocabulary = op.logits.dim(-1);
    const std::int32_t* targets = op.targets.data<std::int32_t>();
    A* losses = op.losses.data<A>();
    const A scale = static_cast<A>(op.gradient_scale);
    parallel_for(op.logits.rows(), [&](std::int64_t row) {
      T* logits = op.logits.data<T>() + row * vocabulary;
      const std::int32_t target = targets[row];
      A top = static_cast<A>(logits[0]);
#pragma omp simd reduction(max : top)
      for (std::int64_t j = 0; j < vocabulary; ++j)
        top = std::max(top, static_cast<A>(logits[j]));
      A sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t j = 0; j < vocabulary; ++j)
        sum += fast_exp(static_cast<A>(logits[j]) - top);
      losses[row] = std::log(sum) + top - static_cast<A>(logits[target]);
      if (!op.write_gradient) return;
      const A factor = scale / sum;
      const A target_probability = fast_exp(static_cast<A>(logits[target]) - top) / sum;
#pragma omp simd
      for (std::int64_t j = 0; j < vocabulary; ++j)
        logits[j] = static_cast<T>(fast_exp(static_cast<A>(logits[j]) - top) * factor);
      logits[target] = static_cast<T>(scale * (target_probability - A(1)));
    });
  });
}

}  // namespace sluice
