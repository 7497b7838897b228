#pragma once

#include "kernels/base/dispatch.h"
#include "kernels/base/view.h"
#include "kernels/cpu/math.h"

namespace sluice::cpu {

/// Derives the working weight that belongs to a master weight. bf16 rounds half away from zero.
template <class W, class A>
inline void store_working(W& to, A master) {
  if constexpr (std::is_same_v<W, BFloat16>)
    to.bits = BFloat16::round_half_away(static_cast<float>(master));
  else
    store(to, static_cast<Accumulator<W>>(master));
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
