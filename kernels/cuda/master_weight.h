#pragma once

#include <type_traits>

#include "kernels/base/view.h"
#include "kernels/cuda/convert.h"

namespace sluice::cuda {

/// Derives the working weight from a master weight; bf16 rounds half away from zero.
template <class W>
__device__ __forceinline__ W working_weight(float master) {
  if constexpr (std::is_same_v<W, BFloat16>) {
    BFloat16 result;
    result.bits = BFloat16::round_half_away(master);
    return result;
  } else {
    return from_float<W>(master);
  }
}

/// Calls `body.operator()<W>()` with the type of the working weight: float if there is none.
template <class Body>
void dispatch_working(DType master, const View& working, Body&& body) {
  check(master == DType::f32, "master weights on a GPU are f32");
  check(dispatch_among<float, BFloat16, Half>(working ? working.dtype : DType::f32, body),
        "working weights are f32, bf16 or f16");
}

}  // namespace sluice::cuda
