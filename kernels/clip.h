#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// Gradient clipping, computed on the device that has the gradient, so that the host need not wait
/// for it:
///   norm   = sqrt(sum of partial) / loss_scale
///   factor = min(1, limit / (norm + 1e-6)) / loss_scale, or NaN if the norm is not finite
/// A limit of 0 means no clipping. partial: [n] f64 as SquaredNorm writes it, summed in a fixed
/// order; norm: one f64; factor: one element of the master weights' dtype.
struct ClipFactor {
  View norm;
  View factor;
  View partial;
  double limit = 0;
  double loss_scale = 1;
};
void launch_cpu(const ClipFactor& op);
void launch_cuda(const ClipFactor& op, Stream stream);

}  // namespace sluice
