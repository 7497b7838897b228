#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cpu/math.h"

// Softmax cross-entropy of one row of logits: the whole vocabulary or a part of it.

namespace sluice::cpu {

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

}  // namespace sluice::cpu
