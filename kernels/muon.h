#pragma once

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

// The steps of Muon (Jordan and others, 2024, https://kellerjordan.github.io/posts/muon) beside its
// matrix products. optim/newton_schulz.h has these and the order of all. A gradient_scale is one
// element of the master weights' dtype, 1 if not given; if it is not finite, an op that takes it
// changes nothing.

/// Nesterov momentum:
///   g = gradient_scale * grad;  m = momentum * m + (1 - momentum) * g
///   direction = momentum * m + (1 - momentum) * g
/// All arrays: [n]. first_moment: f32 (or f64); grad: the same or, with f32 moments, bf16;
/// direction: f32, bf16 or f64.
struct MuonMomentum {
  View direction;
  View first_moment;
  View grad;
  View gradient_scale{};
  double momentum = 0.95;
};
void launch_cpu(const MuonMomentum& op);
void launch_cuda(const MuonMomentum& op, Stream stream);

/// matrix /= max(sqrt(sum of partial), epsilon). matrix: [n], f32, bf16 or f64; partial: its
/// squares as SquaredNorm sums them, added in a fixed order.
struct DivideByNorm {
  View matrix;
  View partial;
  double epsilon = 1e-7;
};
void launch_cpu(const DivideByNorm& op);
void launch_cuda(const DivideByNorm& op, Stream stream);

/// A symmetric matrix from its lower triangle, and the lower triangle of another one:
///   out = identity I + added_factor * added + factor * out
/// Reads what is on and below the diagonals and writes all of out. out, added: [n, n], contiguous,
/// of one dtype; without `added` that term is left out.
struct SymmetricSum {
  View out;
  View added{};
  double factor = 1;
  double added_factor = 0;
  double identity = 0;
};
void launch_cpu(const SymmetricSum& op);
void launch_cuda(const SymmetricSum& op, Stream stream);

/// The weight update: w -= rate * weight_decay * w;  w -= step * direction. All arrays: [n].
/// master, working, remainder: as in AdamW (kernels/adamw.h); direction: f32, bf16 or f64.
struct MuonUpdate {
  View master{};
  View working{};
  View remainder{};
  View direction;
  View gradient_scale{};
  double rate = 0;
  double step = 0;
  double weight_decay = 0;
};
void launch_cpu(const MuonUpdate& op);
void launch_cuda(const MuonUpdate& op, Stream stream);

}  // namespace sluice
