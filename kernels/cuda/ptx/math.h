#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "kernels/cuda/target.h"

namespace sluice::cuda {

/// 2^x on the special-function unit: accurate to two ulp, 0 for -infinity.
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

/// 1 / x for normal numbers: accurate to one ulp, 0 for infinity.
__device__ __forceinline__ float reciprocal(float x) {
#ifdef __CUDACC__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

__device__ __forceinline__ float reciprocal_root(float x) {
#ifdef __CUDACC__
  return rsqrtf(x);
#else
  return 1.0f / std::sqrt(x);
#endif
}

/// Sine and cosine of an angle in units of 2^-32 of a full turn, accurate to two ulp of 1.
__device__ __forceinline__ void sine_cosine_of_turns(std::int32_t turns, float& sine,
                                                     float& cosine) {
  const float half_turns = static_cast<float>(turns) * 0x1p-31f;
#ifdef __CUDACC__
  sincospif(half_turns, &sine, &cosine);
#else
  const double angle = static_cast<double>(half_turns) * std::numbers::pi;
  sine = static_cast<float>(std::sin(angle));
  cosine = static_cast<float>(std::cos(angle));
#endif
}

__device__ __forceinline__ float error_function(float x) {
#ifdef __CUDACC__
  return erff(x);
#else
  return std::erf(x);
#endif
}

/// The larger of two values; if one is NaN, the other.
__device__ __forceinline__ float maximum(float a, float b) {
  return fmaxf(a, b);
}

constexpr float log2_e = 1.44269504088896341f;
constexpr float ln_2 = 0.693147180559945309f;

}  // namespace sluice::cuda
