#pragma once

#include <cstdint>

#include "kernels/base/fused.h"

namespace sluice {

/// An 8-bit code for numbers of very different size (the dynamic map of Dettmers, "8-bit
/// approximations for parallelism in deep learning", 2016, as used in Dettmers et al., "8-bit
/// optimizers via block-wise quantization", 2022), for magnitudes in [0, 1]. Decade k, the
/// x with 10^-(k+1) < x <= 10^-k, has n_k = widest / 2^k evenly spaced values
///   10^-k (0.1 + 0.9 (j+1) / n_k),  j = 0 .. n_k - 1,
/// whose code is n_k + j: codes grow with what they stand for, and the highest is 1. Code 0 is 0.
/// The narrowest decade has the one value 10^-k; below it there is only 0.
template <int widest>
struct DynamicMagnitude {
  static constexpr int highest = 2 * widest - 1;

  /// One exact numerator over one exact denominator: the same bits from every compiler.
  static constexpr float decode(int code) {
    if (code == 0) return 0.0f;
    int n = widest;
    int denominator = 10 * widest;  // 10 n_k 10^k, which is 10 widest 5^k; at most 10^8
    for (; n > code; n /= 2)
      denominator *= 5;
    return static_cast<float>(9 * (code + 1) - 8 * n) / static_cast<float>(denominator);
  }

  /// One of the two codes beside x, with the probabilities that make x the mean (to 2^-13 of their
  /// distance); the code of a value that has one. More than 1, and NaN, count as 1. `random` is
  /// less than 2^16.
  ///
  /// Where x lies between codes is a continuous function of straight pieces that flatten from
  /// decade to decade: the least of them all. It is computed in steps of 2^-12, wider than its
  /// error, so that a value that has a code is met exactly.
  static constexpr std::uint32_t encode(float x, std::uint32_t random) {
    const float position = lesser(static_cast<float>(highest) * one, least_piece<widest, 1>(x));
    return (static_cast<std::uint32_t>(static_cast<int>(position + 0.5f)) + (random >> 4)) >> 12;
  }

 private:
  static constexpr float one = 4096;  // from a code to the next

  /// The first where the second is NaN.
  static constexpr float lesser(float a, float b) { return b < a ? b : a; }

  /// Of the decade with n values and those below it; `fives` is 5^k. A template and not a loop: a
  /// loop inside would keep the one over elements from becoming SIMD.
  template <int n, int fives>
  static constexpr float least_piece(float x) {
    if constexpr (n == 1) {  // from 0 to the only value
      return x * (one * widest * fives);
    } else {
      constexpr auto slope = static_cast<float>(10.0 * one * widest * fives / 9);
      constexpr auto offset = static_cast<float>(one * (8.0 * n / 9 - 1));
      return lesser(fused(x, slope, offset), least_piece<n / 2, fives * 5>(x));
    }
  }
};

/// x in [-1, 1]: the sign in the highest bit, seven decades of 64 to 1 magnitudes. Code 0x80 is
/// not used. What is nearer to 0 than 10^-6 may become 0.
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

/// x in [0, 1]: eight decades of 128 to 1 values. Only 0 becomes 0: it is for what is divided by.
struct PositiveMap {
  using Magnitude = DynamicMagnitude<128>;

  static constexpr float decode(std::uint8_t code) { return Magnitude::decode(code); }
  static constexpr std::uint32_t encode(float x, std::uint32_t random) {
    const std::uint32_t code = Magnitude::encode(x, random);
    return code == 0 && x > 0 ? 1u : code;
  }
};

}  // namespace sluice
