#include "engine/rng.h"

#include <array>
#include <cmath>

#include "kernels/base/philox.h"

namespace sluice {

std::uint64_t random_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t key = mix_key(seed, name.size());
  for (const char c : name)
    key = mix_key(key, static_cast<unsigned char>(c));
  return key;
}

double uniform(std::uint64_t key, std::uint64_t index) {
  const auto words = philox(key, index);
  const std::uint64_t bits = static_cast<std::uint64_t>(words[0]) << 21 | words[1] >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

void fill_normal(std::uint64_t key, std::uint64_t first, double standard_deviation,
                 std::span<float> out) {
  // One counter gives four words, two pairs of uniforms, four normals.
  std::array<double, 4> normals{};
  std::uint64_t counter = ~std::uint64_t{0};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t element = first + i;
    if (element / 4 != counter) {
      counter = element / 4;
      const auto words = philox(key, counter);
      for (std::size_t pair = 0; pair < 4; pair += 2) {
        const double u = (words[pair] + 1.0) * 0x1p-32;  // in (0, 1], so that its logarithm exists
        const double angle = words[pair + 1] * (0x1p-32 * 2.0 * 3.14159265358979323846);
        const double radius = std::sqrt(-2.0 * std::log(u));
        normals[pair] = radius * std::cos(angle);
        normals[pair + 1] = radius * std::sin(angle);
      }
    }
    out[i] = static_cast<float>(standard_deviation * normals[element % 4]);
  }
}

DropoutMask DropoutSource::mask(std::uint64_t site, std::optional<float> other) const {
  return {.key = mix_key(mix_key(mix_key(seed, 0xD50), step), site),
          .probability = other.value_or(probability),
          .first_sample = first_sample};
}

}  // namespace sluice
