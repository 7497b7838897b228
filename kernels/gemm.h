#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/view.h"
#include "kernels/elementwise.h"

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

/// out: [m, n]; the sums have k products.
struct GemmSize {
  std::int64_t m, n, k;
};
/// Error unless the operands fit together.
inline GemmSize size_of(const Gemm& op) {
  const std::int64_t m = op.transpose_a ? op.a.dim(1) : op.a.dim(0);
  const std::int64_t k = op.transpose_a ? op.a.dim(0) : op.a.dim(1);
  const std::int64_t n = op.transpose_b ? op.b.dim(0) : op.b.dim(1);
  const std::int64_t b_k = op.transpose_b ? op.b.dim(1) : op.b.dim(0);
  check(k == b_k && m == op.out.dim(0) && n == op.out.dim(1),
        "a matrix product's operands do not fit together");
  return {m, n, k};
}

/// Runs a product with a GELU epilogue in two steps where no fused one exists: calls `launch(Gemm)`
/// and then `launch(GeluForward)` or `launch(GeluBackward)`. If the product has no GELU epilogue,
/// launches nothing and returns false.
template <class Launch>
bool launch_in_two_steps(const Gemm& op, Launch&& launch) {
  if (!op.pre_activation && !op.gelu_input) return false;
  check(!op.accumulate, "a product with a GELU does not accumulate");
  Gemm product = op;
  product.pre_activation = product.gelu_input = View{};
  if (op.pre_activation) {
    product.out = op.pre_activation;
    launch(product);
    launch(GeluForward{.out = op.out, .in = op.pre_activation});
  } else {
    launch(product);
    launch(GeluBackward{.grad_in = op.out, .grad_out = op.out, .in = op.gelu_input});
  }
  return true;
}

}  // namespace sluice
