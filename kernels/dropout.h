#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/philox.h"
#include "kernels/base/view.h"

namespace sluice {

/// Selects the dropped elements as a function of (key, sample, element) alone, so that forward,
/// backward, recompute and any split over ranks agree. The key mixes seed, step and layer.
struct DropoutMask {
  std::uint64_t key = 0;
  float probability = 0;
  std::int64_t first_sample = 0;  ///< global index of the batch's first sequence

  constexpr bool active() const { return probability > 0; }
  constexpr float scale() const { return 1.0f / (1.0f - probability); }
  /// An element is kept if its random word is at least this.
  constexpr std::uint32_t threshold() const {
    return static_cast<std::uint32_t>(static_cast<double>(probability) * 4294967296.0);
  }
};

/// out = in * mask / (1 - p); the backward pass is the same call on the gradient. out, in:
/// [samples, elements per sample]; out may be in. A rank that has a contiguous part of the tokens
/// sets `first` and `per_sample`; out and in may then have any shape and may begin and end within a
/// sample.
struct Dropout {
  View out;
  View in;
  DropoutMask mask;
  std::int64_t first = 0;       ///< index of out's first element in the whole batch
  std::int64_t per_sample = 0;  ///< elements per sample; 0: out's elements per index of dimension 0
};
void launch_cpu(const Dropout& op);
void launch_cuda(const Dropout& op, Stream stream);

}  // namespace sluice
