#pragma once

#include <cmath>

namespace sluice {

/// a * b + c with one rounding. Formulas of which the CPU and a GPU must compute the same bits use
/// it explicitly, because compilers differ in which plain sums they contract. Single sums,
/// products, quotients and square roots are rounded alike by all (IEEE 754).
template <class T>
constexpr T fused(T a, T b, T c) {
#ifdef __CUDA_ARCH__
  return ::fma(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

}  // namespace sluice
