#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/dropout.h"

namespace sluice {

/// A key for a named stream of random numbers under a seed.
std::uint64_t random_key(std::uint64_t seed, std::string_view name);

/// Returns element `index` of the stream `key`, uniform in [0, 1).
double uniform(std::uint64_t key, std::uint64_t index);

/// Writes elements [first, first + out.size()) of a stream of normal numbers with mean 0 (Box &
/// Muller, 1958). Any split of a tensor gets the same numbers.
void fill_normal(std::uint64_t key, std::uint64_t first, double standard_deviation,
                 std::span<float> out);

/// Source of the dropout masks of one training step.
struct DropoutSource {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::int64_t first_sample = 0;  ///< global index of the micro-batch's first sequence
  float probability = 0;
  /// Other probabilities: of attention's weights, and of embedded tokens.
  std::optional<float> attention{}, embedding{};
  float adapters = 0;  ///< probability for what low-rank adapters read

  /// Returns the mask of one dropout layer; every layer in the model has its own `site`. `other`:
  /// its probability, if it has one of its own.
  DropoutMask mask(std::uint64_t site, std::optional<float> other = {}) const;
};

}  // namespace sluice
