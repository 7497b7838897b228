#pragma once

#include <cmath>

namespace sluice {

/// a * b + c, rounded once. Written out in formulas of which the CPU and a GPU must compute the
/// same bits: of sums that are written plainly, every compiler contracts others. Sums and products
/// that stand alone, quotients and square roots are rounded alike by all (IEEE 754).
template <class T>
constexpr T fused(T a, T b, T c) {
#ifdef __CUDA_ARCH__
  return ::fma(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

}  // namespace sluice
