#pragma once

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// SwiGLU (Shazeer, "GLU variants improve transformer", 2020): out = silu(gate) * up with
/// silu(x) = x / (1 + exp(-x)). The rows of `in` hold the gate's columns, then those of up.
/// in: [rows, 2 * width]; out: [rows, width].
struct SwigluForward {
  View out;
  View in;
};
void launch_cpu(const SwigluForward& op);
void launch_cuda(const SwigluForward& op, Stream stream);

/// grad_in: [rows, 2 * width], may be `in`.
struct SwigluBackward {
  View grad_in;
  View grad_out;
  View in;
};
void launch_cpu(const SwigluBackward& op);
void launch_cuda(const SwigluBackward& op, Stream stream);

}  // namespace sluice
