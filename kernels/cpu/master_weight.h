#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/base/dtype.h"
#include "kernels/base/half.h"
#include "kernels/base/view.h"
#include "kernels/cpu/math.h"

namespace sluice::cpu {

/// Derives the working weight from a master weight. bf16 rounds half away from zero.
template <class W, class A>
inline void store_working(W& to, A master) {
  if constexpr (std::is_same_v<W, BFloat16>)
    to.bits = BFloat16::round_half_away(static_cast<float>(master));
  else
    store(to, static_cast<Accumulator<W>>(master));
}

/// Storage of master weights: an array of their own, with the working weights derived from them
/// (null if the model computes with the master itself), or split over two arrays.
template <class A, class W>
struct WholeMaster {
  using Type = A;
  A* master;
  W* working;

  A load(std::int64_t i) const { return master[i]; }
  void store(std::int64_t i, A value) const {
    master[i] = value;
    if (working != nullptr) store_working(working[i], value);
  }
  WholeMaster from(std::int64_t i) const {
    return {master + i, working != nullptr ? working + i : nullptr};
  }
};
struct HalvedMaster {
  using Type = float;
  BFloat16* working;
  std::int16_t* remainder;

  float load(std::int64_t i) const { return SplitMaster::join(working[i], remainder[i]); }
  void store(std::int64_t i, float value) const {
    const SplitMaster split(value);
    working[i].bits = split.high.bits;
    remainder[i] = split.low;
  }
  HalvedMaster from(std::int64_t i) const { return {working + i, remainder + i}; }
};

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
