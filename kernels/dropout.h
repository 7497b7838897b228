#pragma once

#include <cstdint>

#include "kernels/base/philox.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// Which elements are dropped: a function of (key, sample, element) alone, so that forward,
/// backward, recompute and any split over ranks agree. The key mixes seed, step and layer.
struct DropoutMask {
  std::uint64_t key = 0;
  float probability = 0;
  std::int64_t first_sample = 0;  ///< global index of the batch's first sequence

  constexpr bool active() const { return probability > 0; }
  constexpr float scale() const { return 1.0f / (1.0f - probability); }
  /// An element is kept when its random word is at least this.
  constexpr std::uint32_t threshold() const {
    return static_cast<std::uint32_t>(static_cast<double>(probability) * 4294967296.0);
  }
};

/// out = in * mask / (1 - p); the backward pass is the same call on the gradient.
/// out, in: [samples, elements per sample]; out may be in. A rank that has a stretch of the tokens
/// gives where it begins and how long a sample is; out and in then have any shape and may begin and
/// end within a sample.
struct Dropout {
  View out;
  View in;
  DropoutMask mask;
  std::int64_t first = 0;       ///< of out's first element among all those of the batch
  std::int64_t per_sample = 0;  ///< elements; 0: as many as out has for each of its first dimension
};
void launch_cpu(const Dropout& op);
void launch_cuda(const Dropout& op, Stream stream);

}  // namespace sluice
