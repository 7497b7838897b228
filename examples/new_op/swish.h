#pragma once

#include <engine/tensor.h>
#include <kernels/base/run.h>

// An op that Sluice does not have: swish(x) = x * sigmoid(x).

namespace mine {

/// out = in / (1 + exp(-in))
struct SwishForward {
  sluice::View out, in;
};
void launch_cpu(const SwishForward& op);
void launch_cuda(const SwishForward& op, sluice::Stream stream);

/// grad_in = grad_out * (s + in s (1 - s)), s = sigmoid(in)
struct SwishBackward {
  sluice::View grad_in, grad_out, in;
};
void launch_cpu(const SwishBackward& op);
void launch_cuda(const SwishBackward& op, sluice::Stream stream);

sluice::Tensor swish(const sluice::Tensor& x);

}  // namespace mine
