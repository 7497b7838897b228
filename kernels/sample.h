#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// Draws a token from each row of logits. At temperature 0 it is the token with the largest logit,
/// the first among equals. Otherwise the candidates are the top_k largest (0: all; the first among
/// equals), of those the fewest whose probability reaches top_p (Holtzman et al., "The curious case
/// of neural text degeneration", 2020). The token is the first candidate, in vocabulary order, at
/// which the running sum of probabilities exceeds `point` times their total. A token of logit
/// -infinity is impossible. No token, -1, is drawn from a row that has NaN or +infinity, or nothing
/// but -infinity.
/// logits: [rows, vocabulary] f32; points: [rows] f32 in [0, 1); tokens: [rows] i32.
struct SampleToken {
  View tokens;
  View logits;
  View points{};  ///< not needed at temperature 0
  float temperature = 1;
  std::int64_t top_k = 0;
  float top_p = 1;
};
void launch_cpu(const SampleToken& op);
void launch_cuda(const SampleToken& op, Stream stream);

}  // namespace sluice
