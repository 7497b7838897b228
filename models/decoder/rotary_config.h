#pragma once

#include <cstdint>
#include <optional>

#include "kernels/rotary.h"

namespace sluice {

/// Frequencies for contexts longer than those of pretraining, as Llama 3.1 has them: a pair of
/// columns whose wave is longer than original_context / low_frequency turns by 1/factor of its
/// angle, one shorter than original_context / high_frequency by all of it.
struct Llama3Scaling {
  double factor = 8, low_frequency = 1, high_frequency = 4;
  std::int64_t original_context = 8192;

  friend bool operator==(const Llama3Scaling&, const Llama3Scaling&) = default;
};

/// Rotary position embeddings. Pair i of w columns turns by base^(-2 i / w) a position.
struct RotaryConfig {
  std::int64_t width = 0;  ///< columns of a head that turn, from its first on; 0: all
  RotaryPairs pairs = RotaryPairs::halves;
  double base = 10000;
  double divisor = 1;  ///< all angles are divided by it ("linear" scaling)
  std::optional<Llama3Scaling> llama3{};

  friend bool operator==(const RotaryConfig&, const RotaryConfig&) = default;
};

}  // namespace sluice
