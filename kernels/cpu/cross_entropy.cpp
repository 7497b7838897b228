#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/dtype.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

using namespace cpu;

constexpr std::int64_t partials_of_row = 3;

// A row of logits is the whole vocabulary or a part of it.

/// The largest logit of a row, and the sum of exp(logit - largest).
template <class A>
struct Normalizer {
  A top, sum;
};

/// Returns -infinity and 0 for no columns.
template <class A>
Normalizer<A> normalizer(const A* logits, std::int64_t columns) {
  constexpr A lowest = -std::numeric_limits<A>::infinity();
  A top = columns > 0 ? logits[0] : lowest;
#pragma omp simd reduction(max : top)
  for (std::int64_t j = 0; j < columns; ++j)
    top = logits[j] > top ? logits[j] : top;
  // A reduction may begin at the lowest finite number, as clang's does.
  if (top == std::numeric_limits<A>::lowest())
    top = columns > 0 ? *std::max_element(logits, logits + columns) : lowest;
  const A base = top == lowest ? A(0) : top;  // all tokens are impossible; -inf - -inf would be NaN
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = 0; j < columns; ++j)
    sum += fast_exp(logits[j] - base);
  return {top, sum};
}

/// Writes scale * (softmax - one-hot), using the normalizer of the whole vocabulary. `target` may
/// be outside of these columns. The gradient's elements are at most as wide as the logits', so if
/// both begin at one address a store never reaches a logit that is still to be read.
template <class A, class T>
void write_gradient(T* gradient, const A* logits, std::int64_t columns, std::int64_t target,
                    const Normalizer<A>& whole, A scale) {
  const A top = whole.top, sum = whole.sum;
  const bool here = 0 <= target && target < columns;
  const A at_target = here ? logits[target] : A(0);
  const A factor = scale / sum;
#pragma omp simd
  for (std::int64_t j = 0; j < columns; ++j)
    store(gradient[j], fast_exp(logits[j] - top) * factor);
  // Uses the unrounded probability, because in 16 bits 1 - p would lose a small p.
  if (here) store(gradient[target], scale * (fast_exp(at_target - top) / sum - A(1)));
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
      if (targets[row] < 0) {
        losses[row] = 0;
        if (gradient != nullptr) std::fill_n(gradient + row * stride, vocabulary + op.padding, T{});
        return;
      }
      const A* x = logits + row * op.logits.stride(0);
      const Normalizer<A> whole = normalizer(x, vocabulary);
      losses[row] = std::log(whole.sum) + whole.top - x[targets[row]];
      if (gradient == nullptr) return;
      T* out = gradient + row * stride;
      write_gradient(out, x, vocabulary, targets[row], whole, static_cast<A>(op.gradient_scale));
      std::fill_n(out + vocabulary, op.padding, T{});
    });
  });
}

void launch_cpu(const CrossEntropyPartials& op) {
  dispatch_floating(op.logits.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t columns = op.logits.dim(1);
    const std::int32_t* targets = op.targets.data<std::int32_t>();
    const A* logits = op.logits.data<A>();
    A* partials = op.partials.data<A>();
    parallel_for(op.logits.dim(0), [&](std::int64_t row) {
      const A* x = logits + row * op.logits.stride(0);
      const Normalizer<A> part = normalizer(x, columns);
      const std::int64_t target = targets[row] - op.first;
      A* out = partials + row * partials_of_row;
      out[0] = part.top;
      out[1] = part.sum;
      out[2] = 0 <= target && target < columns ? x[target] : A(0);
    });
  });
}

void launch_cpu(const CrossEntropyOfPartials& op) {
  dispatch_floating(op.gradient ? op.gradient.dtype : op.logits.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t rows = op.logits.dim(0);
    const std::int64_t columns = op.logits.dim(1);
    const std::int32_t* targets = op.targets.data<std::int32_t>();
    const A* logits = op.logits.data<A>();
    const A* partials = op.partials.data<A>();
    const std::int64_t ranks = op.partials.dim(0);
    const std::int64_t stride = rows * partials_of_row;  // distance between ranks
    T* gradient = op.gradient ? op.gradient.data<T>() : nullptr;
    const std::int64_t gradient_stride = op.gradient ? op.gradient.stride(0) : 0;
    A* losses = op.losses.data<A>();
    parallel_for(rows, [&](std::int64_t row) {
      if (targets[row] < 0) {
        losses[row] = 0;
        if (gradient != nullptr)
          std::fill_n(gradient + row * gradient_stride, columns + op.padding, T{});
        return;
      }
      const A* own = partials + row * partials_of_row;
      Normalizer<A> whole{own[0], 0};
      for (std::int64_t rank = 1; rank < ranks; ++rank)
        whole.top = std::max(whole.top, own[rank * stride]);
      A at_target = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        whole.sum += own[rank * stride + 1] * fast_exp(own[rank * stride] - whole.top);
        at_target += own[rank * stride + 2];
      }
      losses[row] = std::log(whole.sum) + whole.top - at_target;
      if (gradient == nullptr) return;
      T* out = gradient + row * gradient_stride;
      write_gradient(out, logits + row * op.logits.stride(0), columns, targets[row] - op.first,
                     whole, static_cast<A>(op.gradient_scale));
      std::fill_n(out + columns, op.padding, T{});
    });
  });
}

}  // namespace sluice
