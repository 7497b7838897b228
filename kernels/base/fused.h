#pragma once

#include <cmath>

namespace sluice {

/// Returns a * b + c with one rounding (FMA). Formulas that must give the same bits on the CPU and
/// on a GPU call it explicitly, because compilers differ in which sums they contract into an FMA.
/// Plain sums, products, quotients and square roots are rounded alike everywhere (IEEE 754).
template <class T>
constexpr T fused(T a, T b, T c) {
#ifdef __CUDA_ARCH__
  return ::fma(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

}  // namespace sluice
