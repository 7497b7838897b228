#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

/// Loss of one row; its logits become scale * (softmax - one-hot) if `write_gradient`.
template <class T>
Accumulator<T> row_loss(T* logits, std::int64_t vocabulary, std::int32_t target,
                        Accumulator<T> scale, bool write_gradient) {
  using A = Accumulator<T>;
  A top = static_cast<A>(logits[0]);
#pragma omp simd reduction(max : top)
  for (std::int64_t j = 0; j < vocabulary; ++j) {
    const A x = static_cast<A>(logits[j]);
    top = x > top ? x : top;
  }
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = 0; j < vocabulary; ++j)
    sum += fast_exp(static_cast<A>(logits[j]) - top);
  const A at_target = static_cast<A>(logits[target]);
  if (write_gradient) {
    const A factor = scale / sum;
#pragma omp simd
    for (std::int64_t j = 0; j < vocabulary; ++j)
      store(logits[j], fast_exp(static_cast<A>(logits[j]) - top) * factor);
    // From the unrounded probability: in 16 bits 1 - p would lose a small p.
    store(logits[target], scale * (fast_exp(at_target - top) / sum - A(1)));
  }
  return std::log(sum) + top - at_target;
}

}  // namespace

void launch_cpu(const CrossEntropy& op) {
  dispatch_floating(op.logits.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t vocabulary = op.logits.dim(-1);
    const std::int32_t* targets = op.targets.data<std::int32_t>();
    T* logits = op.logits.data<T>();
    A* losses = op.losses.data<A>();
    parallel_for(op.logits.rows(), [&](std::int64_t row) {
      losses[row] = row_loss(logits + row * vocabulary, vocabulary, targets[row],
                             static_cast<A>(op.gradient_scale), op.write_gradient);
    });
  });
}

}  // namespace sluice
