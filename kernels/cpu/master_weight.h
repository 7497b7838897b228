#pragma once

#include "kernels/base/dispatch.h"
#include "kernels/base/view.h"

namespace sluice::cpu {

/// The working weight that belongs to a master weight. bf16 rounds half away from zero.
template <class W, class A>
W working_weight(A master) {
  if constexpr (std::is_same_v<W, BFloat16>)
    return BFloat16::round_half_away(static_cast<float>(master));
  else
    return static_cast<W>(master);
}

/// Calls `body.operator()<A, W>()` with the types of the master and of the working weight.
template <class Body>
void dispatch_master(DType master, const View& working, Body&& body) {
  if (master == DType::f64) return body.template operator()<double, double>();
  check(master == DType::f32, "master weights are f32 or f64");
  if (!working || working.dtype == DType::f32) return body.template operator()<float, float>();
  if (working.dtype == DType::bf16) return body.template operator()<float, BFloat16>();
  check(working.dtype == DType::f16, "working weights are f32, bf16 or f16");
  return body.template operator()<float, Half>();
}

}  // namespace sluice::cpu
