#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// GELU in its tanh form (Hendrycks & Gimpel, 2016), as in GPT-2:
///   out = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))
struct GeluForward {
  View out;
  View in;
};
void launch_cpu(const GeluForward& op);
void launch_cuda(const GeluForward& op, Stream stream);

/// grad_in = grad_out * gelu'(in); grad_in may be grad_out.
struct GeluBackward {
  View grad_in;
  View grad_out;
  View in;
};
void launch_cpu(const GeluBackward& op);
void launch_cuda(const GeluBackward& op, Stream stream);

}  // namespace sluice
