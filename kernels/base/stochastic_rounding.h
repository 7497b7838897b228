#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/half.h"
#include "kernels/base/philox.h"

namespace sluice {

/// The random bits of stochastic rounding: a pure function from (key, element) to 32 bits, so that
/// an element rounds alike wherever and in whichever piece of its array it is computed. Rounding
/// asks little of them and they are drawn for every element of every step: two rounds of a 32-bit
/// integer hash (lowbias32; Wellons, "Prospecting for hash functions", 2018) in place of Philox,
/// in multiplications and shifts that a CPU does many at a time.
class RoundingBits {
 public:
  /// Neighbouring keys, such as the numbers of steps, give unrelated bits.
  explicit constexpr RoundingBits(std::uint64_t key)
      : first_(static_cast<std::uint32_t>(mix_key(key, 0))),
        second_(static_cast<std::uint32_t>(mix_key(key, 0) >> 32)) {}

  constexpr std::uint32_t operator()(std::int64_t element) const { return (*this)(element, 0); }
  /// Of element first + i: without 64-bit numbers in a loop over i.
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

/// One of the two bf16 values beside `value`, with the probabilities that make `value` the mean:
/// random bits are added below the cut and what is below it is dropped. A bf16 value stays what it
/// is, and nothing finite becomes infinite.
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
