#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

/// bfloat16: the upper half of an fp32. Conversion rounds to nearest, ties to even.
struct BFloat16 {
  std::uint16_t bits;

  BFloat16() = default;
  explicit constexpr BFloat16(float value) : bits(round_to_even(value)) {}
  explicit constexpr operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

  // These work on bits, without branches or temporaries, so that loops over them vectorize.

  static constexpr std::uint16_t round_to_even(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    return select(u, (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
  }
  /// Rounds ties away from zero. All state layouts round the fp32 master weight to the working
  /// weight in this way (ties to even would need a 17th bit in the split layout).
  static constexpr std::uint16_t round_half_away(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    return select(u, (u + 0x8000u) >> 16);
  }

 private:
  /// Returns `rounded`, or a quiet NaN if the fp32 value is a NaN.
  static constexpr std::uint16_t select(std::uint32_t u, std::uint32_t rounded) {
    const std::uint32_t quiet_nan = (u >> 16) | 0x40u;
    return static_cast<std::uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : rounded);
  }
};

/// IEEE binary16. Conversion rounds to nearest, ties to even; overflow becomes infinity.
struct Half {
  std::uint16_t bits;

  Half() = default;
  explicit constexpr Half(float value) : bits(0) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000u;
    const std::uint32_t magnitude = u & 0x7FFFFFFFu;
    std::uint32_t out = 0;
    if (magnitude >= 0x7F800000u) {  // infinity or NaN
      out = magnitude > 0x7F800000u ? 0x7E00u | ((magnitude >> 13) & 0x1FFu) : 0x7C00u;
    } else if (magnitude >= 0x477FF000u) {  // rounds to 65536 or more
      out = 0x7C00u;
    } else if (magnitude < 0x38800000u) {  // subnormal: an fp32 addition does the rounding
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      out = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u;
    } else {
      out = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    }
    bits = static_cast<std::uint16_t>(sign | out);
  }
  explicit constexpr operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1Fu;
    const std::uint32_t mantissa = bits & 0x3FFu;
    if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
    if (exponent == 0) {
      const float value = static_cast<float>(mantissa) * 0x1p-24f;
      return sign != 0 ? -value : value;
    }
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
};

/// Stores an fp32 master weight exactly, as its bf16 working weight `high` and a signed 16-bit
/// remainder `low`: the bits of the master are (high << 16) + low. `high` is rounded half away from
/// zero, so that `low` fits in 16 bits. Training gives the same bits as with an fp32 master.
struct SplitMaster {
  BFloat16 high;
  std::int16_t low;

  explicit constexpr SplitMaster(float master) : high(0.0f), low(0) {
    high.bits = BFloat16::round_half_away(master);
    const auto bits = std::bit_cast<std::uint32_t>(master);
    low = static_cast<std::int16_t>(
        static_cast<std::uint16_t>(bits - (static_cast<std::uint32_t>(high.bits) << 16)));
  }

  static constexpr float join(BFloat16 high, std::int16_t low) {
    return std::bit_cast<float>((static_cast<std::uint32_t>(high.bits) << 16) +
                                static_cast<std::uint32_t>(static_cast<std::int32_t>(low)));
  }
};

}  // namespace sluice
