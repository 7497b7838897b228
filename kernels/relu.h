#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// out = max(in, 0)
struct ReluForward {
  View out;
  View in;
};
void launch_cpu(const ReluForward& op);
void launch_cuda(const ReluForward& op, Stream stream);

/// grad_in = grad_out if out > 0, else 0. Uses the output, so the input need not be kept.
struct ReluBackward {
  View grad_in;
  View grad_out;
  View out;
};
void launch_cpu(const ReluBackward& op);
void launch_cuda(const ReluBackward& op, Stream stream);

}  // namespace sluice
