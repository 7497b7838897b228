#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// out = scale * sum of all elements of in (plus out, with `accumulate`), summed in f64 in order.
/// in: f32 or f64; out: one element of the same dtype.
struct Sum {
  View out;
  View in;
  double scale = 1;
  bool accumulate = false;
};
void launch_cpu(const Sum& op);
void launch_cuda(const Sum& op, Stream stream);

/// out[j] = sum over i of in[i, j] (the gradient of a bias); `accumulate` adds to out.
/// in: [rows, columns], rows may be strided; out: [columns], f32 (f64 for f64). Rows are added in
/// order.
struct ColumnSum {
  View out;
  View in;
  bool accumulate = false;
};
void launch_cpu(const ColumnSum& op);
void launch_cuda(const ColumnSum& op, Stream stream);

/// partial[i] = sum of squares of the i-th block of `block` elements of `in`. The blocks are fixed
/// by the parameters, not by threads or ranks; the norm adds the partials in order. in: [n] f32,
/// bf16 or, on the CPU, f64; partial: [ceil(n / block)] f64.
struct SquaredNorm {
  View partial;
  View in;
  std::int64_t block = 1 << 16;
};
void launch_cpu(const SquaredNorm& op);
void launch_cuda(const SquaredNorm& op, Stream stream);

/// Squared norms of several arrays. On a GPU one launch has many of them.
struct SquaredNormBatch {
  std::span<const SquaredNorm> norms;
};
void launch_cpu(const SquaredNormBatch& op);
void launch_cuda(const SquaredNormBatch& op, Stream stream);

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
