#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// Which columns of a head are rotated together: i and i + width / 2 (Llama, NeoX), or the
/// neighbours 2 i and 2 i + 1 (GPT-J).
enum class RotaryPairs : std::uint8_t { halves, interleaved };

/// Angles of rotary position embeddings (Su et al., "RoFormer", 2021, eq. 15). It is a kernel's
/// argument.
struct RotaryAngles {
  static constexpr int max_width = 256;

  int width = 0;  ///< columns of a head that are rotated, from its first on; even
  RotaryPairs pairs = RotaryPairs::halves;
  /// The angle of each pair from one position to the next, in units of 2^-64 of a full turn. A
  /// product with the position that wraps around is the angle within a turn, exact at any position.
  std::array<std::uint64_t, max_width / 2> turns{};
};

/// Rotates the first `heads` heads of each row in place, by the angles of the row's position:
///   (a, b) = (a cos - b sin, a sin + b cos) for each pair
/// rows: [B, T, columns]; row t of a sequence has position first_position + t. `inverse` turns
/// back, which is the gradient.
struct Rotary {
  View rows;
  int heads = 1;
  int head_width = 0;
  RotaryAngles angles{};
  std::int64_t first_position = 0;
  bool inverse = false;
};
void launch_cpu(const Rotary& op);
void launch_cuda(const Rotary& op, Stream stream);

}  // namespace sluice
