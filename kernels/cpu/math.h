#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/base/half.h"

namespace sluice::cpu {

/// The type in which values of an element type are computed and summed.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

/// Rounds a computed value into an element. Loops use it instead of an assignment from a converted
/// temporary, which the compiler would not vectorize.
template <class T>
inline void store(T& to, Accumulator<T> value) {
  if constexpr (std::is_same_v<T, BFloat16>)
    to.bits = BFloat16::round_to_even(value);
  else
    to = static_cast<T>(value);
}

/// exp of an fp32 number between these limits is a normal fp32 number.
inline constexpr float lowest_exponent = -87.33654f;
inline constexpr float highest_exponent = 88.72283f;

/// exp for loops that the compiler vectorizes: no branches, no calls. fp32 is within 1.5 ulp inside
/// the normal range; beyond either end it keeps the value at that end; NaN gives NaN. Reduction by
/// ln 2 in two parts and a polynomial of degree 6 (minimax coefficients of expf in the Cephes
/// library).
inline float saturating_exp(float x) {
  // A NaN fails both comparisons and makes the polynomial NaN.
  const float raised = x < lowest_exponent ? lowest_exponent : x;
  const float clamped = raised > highest_exponent ? highest_exponent : raised;
  constexpr float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = clamped * 1.44269504f + magic;
  const float n = shifted - magic;
  float r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n is a product of two factors, because 2^128 does not fit in fp32. The integer n is in the
  // low bits of `shifted`.
  const auto exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(magic);
  const std::int32_t half = exponent >> 1;
  const float a = std::bit_cast<float>((half + 127) << 23);
  const float b = std::bit_cast<float>((exponent - half + 127) << 23);
  return p * a * b;
}

/// Same, but 0 below the normal range and infinity above it.
inline float fast_exp(float x) {
  const float inside = saturating_exp(x);
  const float above = x > highest_exponent ? INFINITY : inside;
  return x < lowest_exponent ? 0.0f : above;
}
inline double fast_exp(double x) {
  return std::exp(x);
}

/// tanh through exp; absolute error below 2e-7 in fp32, which suffices for GELU. If exp had
/// branches at its ends, the compiler would divide once for each of them.
inline float fast_tanh(float x) {
  return 1.0f - 2.0f / (saturating_exp(2.0f * x) + 1.0f);
}
inline double fast_tanh(double x) {
  return std::tanh(x);
}

/// erf with an absolute error below 2e-7 in fp32, which suffices for GELU (Abramowitz and Stegun,
/// "Handbook of mathematical functions", 1964, 7.1.26).
inline float fast_erf(float x) {
  const float magnitude = x < 0 ? -x : x;
  const float t = 1.0f / (1.0f + 0.3275911f * magnitude);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float rest = p * t * saturating_exp(-magnitude * magnitude);
  return x < 0 ? rest - 1.0f : 1.0f - rest;
}
inline double fast_erf(double x) {
  return std::erf(x);
}

}  // namespace sluice::cpu
