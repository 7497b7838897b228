#pragma once

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// Layer normalization over the last dimension (Ba et al., 2016, eq. 4; biased variance), fused
/// with the residual addition that precedes it in a transformer block:
///   sum = in + branch;   out = (sum - mean) * rstd * weight + bias
/// A call without `branch` is a plain LayerNorm and does not write `sum`.
/// in, branch, sum, out: [rows, width]; weight, bias: [width]; mean, rstd: [rows], f32 (f64).
struct LayerNormForward {
  View out;
  View sum{};
  View mean;
  View rstd;
  View in;
  View branch{};
  View weight;
  View bias;
  double epsilon = 1e-5;
};
void launch_cpu(const LayerNormForward& op);
void launch_cuda(const LayerNormForward& op, Stream stream);

/// grad_in = the LayerNorm's gradient + grad_sum (the gradient of `sum` from its other uses, if
/// given). It is the gradient of both `in` and `branch`. grad_weight, grad_bias: [width], f32
/// (f64); `accumulate_*` adds to them. `normalized_in` is the sum (or in) of the forward pass.
/// grad_in may be grad_sum.
struct LayerNormBackward {
  View grad_in;
  View grad_weight;
  View grad_bias;
  View grad_out;
  View grad_sum{};
  View normalized_in;
  View mean;
  View rstd;
  View weight;
  bool accumulate_weight = false;
  bool accumulate_bias = false;
};
void launch_cpu(const LayerNormBackward& op);
void launch_cuda(const LayerNormBackward& op, Stream stream);

}  // namespace sluice
