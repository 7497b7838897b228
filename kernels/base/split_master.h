#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/half.h"

namespace sluice {

/// An fp32 master weight stored exactly as its bf16 working weight and a signed 16-bit remainder:
/// master = (high << 16) + low on the bits. `high` is the master rounded half away from zero, so
/// that low fits (ties to even would need a 17th bit); training has the same bits.
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
