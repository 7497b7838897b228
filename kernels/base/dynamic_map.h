#pragma once

#include <cstdint>

#include "kernels/base/fused.h"

namespace sluice {

/// An 8-bit code for magnitudes in [0, 1] of very different size (the dynamic map of Dettmers,
/// "8-bit approximations for parallelism in deep learning", 2016, as used in Dettmers et al.,
/// "8-bit optimizers via block-wise quantization", 2022). Decade k, i.e. 10^-(k+1) < x <= 10^-k,
/// has n_k = widest / 2^k evenly spaced values
///   10^-k (0.1 + 0.9 (j+1) / n_k),  j = 0 .. n_k - 1,
/// with codes n_k + j: codes grow with their values, and the highest code is 1. Code 0 is 0. The
/// narrowest decade has the single value 10^-k; below it there is only 0.
template <int widest>
struct DynamicMagnitude {
  static constexpr int highest = 2 * widest - 1;

  /// Divides one exact numerator by one exact denominator: the same bits from every compiler.
  static constexpr float decode(int code) {
    if (code == 0) return 0.0f;
    int n = widest;
    int denominator = 10 * widest;  // 10 n_k 10^k, which is 10 widest 5^k; at most 10^8
    for (; n > code; n /= 2)
      denominator *= 5;
    return static_cast<float>(9 * (code + 1) - 8 * n) / static_cast<float>(denominator);
  }

  /// Returns one of the two codes next to x, with probabilities that make x the mean (to 2^-13 of
  /// their distance), or the code of x if x has one. Values above 1, and NaN, count as 1. `random`
  /// is less than 2^16.
  ///
  /// The position of x between codes is a continuous, piecewise linear function. Its pieces flatten
  /// from decade to decade, so it is the minimum of them all. It is computed in steps of 2^-12,
  /// wider than its error, so that a value that has a code gets exactly that code.
  static constexpr std::uint32_t encode(float x, std::uint32_t random) {
    const float position = lesser(static_cast<float>(highest) * one, least_piece<widest, 1>(x));
    return (static_cast<std::uint32_t>(static_cast<int>(position + 0.5f)) + (random >> 4)) >> 12;
  }

 private:
  static constexpr float one = 4096;  // distance between neighbouring codes

  /// Returns a if b is NaN.
  static constexpr float lesser(float a, float b) { return b < a ? b : a; }

  /// Minimum over the decade with n values and those below it; `fives` is 5^k. This is a template,
  /// because an inner loop would keep the loop over elements from being vectorized.
  template <int n, int fives>
  static constexpr float least_piece(float x) {
    if constexpr (n == 1) {  // from 0 to the decade's single value
      return x * (one * widest * fives);
    } else {
      constexpr auto slope = static_cast<float>(10.0 * one * widest * fives / 9);
      constexpr auto offset = static_cast<float>(one * (8.0 * n / 9 - 1));
      return lesser(fused(x, slope, offset), least_piece<n / 2, fives * 5>(x));
    }
  }
};

/// Map of [-1, 1]: the sign in the highest bit, seven decades of 64 to 1 magnitudes. Code 0x80 is
/// not used. Values closer to 0 than 10^-6 may become 0.
struct SignedMap {
  using Magnitude = DynamicMagnitude<64>;

  static constexpr float decode(std::uint8_t code) {
    const float magnitude = Magnitude::decode(code & 0x7F);
    return code > 0x7F ? -magnitude : magnitude;
  }
  static constexpr std::uint32_t encode(float x, std::uint32_t random) {
    const std::uint32_t code = Magnitude::encode(x < 0 ? -x : x, random);
    return x < 0 && code > 0 ? code | 0x80u : code;
  }
};

/// Map of [0, 1]: eight decades of 128 to 1 values. Only 0 becomes 0, since values are divisors.
struct PositiveMap {
  using Magnitude = DynamicMagnitude<128>;

  static constexpr float decode(std::uint8_t code) { return Magnitude::decode(code); }
  static constexpr std::uint32_t encode(float x, std::uint32_t random) {
    const std::uint32_t code = Magnitude::encode(x, random);
    return code == 0 && x > 0 ? 1u : code;
  }
};

}  // namespace sluice
