#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/half.h"
#include "kernels/base/philox.h"

namespace sluice {

/// Random bits for stochastic rounding: a pure function from (key, element) to 32 bits, so that an
/// element's rounding does not depend on how the array is cut into pieces. Rounding needs no strong
/// random numbers, but needs them for every element in every step. It therefore uses two rounds of
/// a 32-bit integer hash (lowbias32; Wellons, "Prospecting for hash functions", 2018) instead of
/// Philox: multiplications and shifts that a CPU vectorizes.
class RoundingBits {
 public:
  /// Neighbouring keys, such as step numbers, give unrelated bits.
  explicit constexpr RoundingBits(std::uint64_t key)
      : first_(static_cast<std::uint32_t>(mix_key(key, 0))),
        second_(static_cast<std::uint32_t>(mix_key(key, 0) >> 32)) {}

  constexpr std::uint32_t operator()(std::int64_t element) const { return (*this)(element, 0); }
  /// Bits of element first + i, without 64-bit numbers in a loop over i.
  constexpr std::uint32_t operator()(std::int64_t first, std::uint32_t i) const {
    const auto low = static_cast<std::uint32_t>(first);
    const auto high = static_cast<std::uint32_t>(static_cast<std::uint64_t>(first) >> 32);
    const std::uint32_t carry = low + i < low ? 1 : 0;
    return hash(hash((low + i) ^ first_) + (second_ ^ ((high + carry) * 0x9E3779B9u)));
  }

 private:
  static constexpr std::uint32_t hash(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
  }

  std::uint32_t first_, second_;
};

/// Returns one of the two bf16 values next to `value`, with probabilities that make `value` the
/// mean: random bits are added below the cut, and then the bits below it are dropped. A bf16 value
/// stays unchanged, and no finite value becomes infinite.
constexpr BFloat16 round_stochastically(float value, std::uint16_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  constexpr std::uint32_t infinity = 0x7F800000u;
  const std::uint32_t rounded = (bits + random) >> 16;
  const bool overflowed = magnitude < infinity && (rounded & 0x7FFFu) == infinity >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  BFloat16 result(0.0f);
  result.bits =
      static_cast<std::uint16_t>(magnitude > infinity ? quiet_nan : rounded - (overflowed ? 1 : 0));
  return result;
}

}  // namespace sluice
