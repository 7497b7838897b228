#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// out = op(a) op(b) + bias, or out += op(a) op(b) with `accumulate`.
/// op(a): [m, k], op(b): [k, n], out: [m, n], bias: [n]; two-dimensional Views whose rows may be
/// strided. a and b share a dtype; out has that dtype or f32 (sums are kept in f32, or in f64). The
/// CPU cuts the product into a tile grid fixed by the shape and computes each tile on one thread,
/// so the bits do not depend on the number of threads.
struct Gemm {
  View out;
  View a;
  View b;
  View bias{};
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  /// Products fused with a GELU. With `pre_activation`, the product and its bias are stored there,
  /// and out is the GELU of the stored values, with the bits of GeluForward. With `gelu_input`, out
  /// is the product times GELU'(gelu_input). Both: [m, n], contiguous, in out's dtype; out must
  /// then be contiguous too.
  View pre_activation{};
  View gelu_input{};
  bool tf32 = false;  ///< a GPU may round f32 operands to 10 bits of mantissa
};
void launch_cpu(const Gemm& op);
void launch_cuda(const Gemm& op, Stream stream);

}  // namespace sluice
