#pragma once

#include <cstdint>

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// Draws a token from each row of logits. A temperature of 0 takes the largest (the first of
/// equals). Otherwise the candidates are the top_k largest (0: all; of equals the first), of those
/// the fewest whose probability reaches top_p (Holtzman et al., "The curious case of neural text
/// degeneration", 2020), and the token is the first candidate, in the order of the vocabulary, at
/// which the sum of their probabilities passes `point` times the sum of all.
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
