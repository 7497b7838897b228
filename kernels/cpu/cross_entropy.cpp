#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

/// Loss of one row, and its gradient unless `gradient` is null. The gradient's elements are at most
/// as wide as the logits', so when both begin at one address a store never reaches a logit that is
/// still to be read.
template <class A, class T>
A row_loss(const A* logits, T* gradient, std::int64_t vocabulary, std::int32_t target, A scale) {
  A top = logits[0];
#pragma omp simd reduction(max : top)
  for (std::int64_t j = 0; j < vocabulary; ++j)
    top = logits[j] > top ? logits[j] : top;
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = 0; j < vocabulary; ++j)
    sum += fast_exp(logits[j] - top);
  const A at_target = logits[target];
  if (gradient != nullptr) {
    const A factor = scale / sum;
#pragma omp simd
    for (std::int64_t j = 0; j < vocabulary; ++j)
      store(gradient[j], fast_exp(logits[j] - top) * factor);
    // From the unrounded probability: in 16 bits 1 - p would lose a small p.
    store(gradient[target], scale * (fast_exp(at_target - top) / sum - A(1)));
  }
  return std::log(sum) + top - at_target;
}

}  // namespace

void launch_cpu(const CrossEntropy& op) {
  dispatch_floating(op.gradient ? op.gradient.dtype : op.logits.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t vocabulary = op.logits.dim(-1);
    const std::int32_t* targets = op.targets.data<std::int32_t>();
    const A* logits = op.logits.data<A>();
    T* gradient = op.gradient ? op.gradient.data<T>() : nullptr;
    const std::int64_t stride = op.gradient ? op.gradient.stride(0) : 0;
    A* losses = op.losses.data<A>();
    parallel_for(op.logits.rows(), [&](std::int64_t row) {
      T* out = gradient != nullptr ? gradient + row * stride : nullptr;
      losses[row] = row_loss(logits + row * op.logits.stride(0), out, vocabulary, targets[row],
                             static_cast<A>(op.gradient_scale));
      if (out != nullptr) std::fill_n(out + vocabulary, op.padding, T{});
    });
  });
}

}  // namespace sluice
