#pragma once

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// Normalization over the last dimension, fused with the residual addition that precedes it in a
/// transformer block. LayerNorm (Ba et al., 2016, eq. 4; biased variance):
///   sum = in + branch;   out = (sum - mean) * rstd * weight + bias
/// LayerNorm may have no bias. RMSNorm (Zhang and Sennrich, 2019, eq. 4) has neither mean nor bias:
///   out = sum * rstd * weight, with rstd = 1 / sqrt(mean of sum^2 + epsilon)
/// A call without `branch` adds nothing and does not write `sum`.
/// in, branch, sum, out: [rows, width]; weight, bias: [width]; mean, rstd: [rows], f32 (f64).
struct NormForward {
  View out;
  View sum{};
  View mean{};
  View rstd;
  View in;
  View branch{};
  View weight;
  View bias{};
  double epsilon = 1e-5;
};
void launch_cpu(const NormForward& op);
void launch_cuda(const NormForward& op, Stream stream);

/// grad_in = the normalization's gradient + grad_sum (the gradient of `sum` from its other uses, if
/// given). It is the gradient of both `in` and `branch`. grad_weight, grad_bias: [width], f32
/// (f64); `accumulate_*` adds to them. `normalized_in` is the sum (or in) of the forward pass.
/// grad_in may be grad_sum. RMSNorm has neither `mean` nor `grad_bias`; LayerNorm without a bias
/// has no `grad_bias`.
struct NormBackward {
  View grad_in;
  View grad_weight;
  View grad_bias{};
  View grad_out;
  View grad_sum{};
  View normalized_in;
  View mean{};
  View rstd;
  View weight;
  bool accumulate_weight = false;
  bool accumulate_bias = false;
};
void launch_cpu(const NormBackward& op);
void launch_cuda(const NormBackward& op, Stream stream);

}  // namespace sluice
