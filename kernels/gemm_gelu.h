#pragma once

#include "kernels/elementwise.h"
#include "kernels/gemm.h"

namespace sluice {

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
