#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// One AdamW update of a run of parameters that share a weight decay (Loshchilov & Hutter, 2019,
/// algorithm 2):
///   g = gradient_scale * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
///   w -= rate * weight_decay * w;  w -= rate * (m / c1) / (sqrt(v / c2) + epsilon)
/// with the bias corrections c1 = 1 - b1^step and c2 = 1 - b2^step. The weight update uses m and v
/// as computed, before they are rounded into their arrays.
///
/// All arrays have shape [n]. In f64 all arrays are f64; otherwise:
///   grad            f32 or bf16
///   weights         f32 `master`, and if given `working`, which receives the weight as f32, f16 or
///                   bf16 (rounded half away from zero); or, with `remainder` (i16), no master:
///                   bf16 working and remainder are its two halves (kernels/base/half.h),
///                   and the results are the same to the bit
///   moments (m, v)  (f32, f32), (bf16, f32), (bf16, bf16) or (u8, u8)
/// bf16 moments are rounded stochastically: with rounding to nearest, a change of less than 2^-9 of
/// the stored value would be lost, step after step.
/// u8 moments hold m and sqrt(v) (for which half the decades suffice) as codes of the dynamic maps
/// (kernels/base/dynamic_map.h), rounded stochastically, in blocks of 256 elements that do not
/// cross a row: ceil(row_length / 256) blocks per row, the last one shorter. A block's scale is the
/// largest magnitude in it, which is what 1 in the map stands for. A number that is not finite
/// makes the scale and thus its whole block not finite.
///
/// gradient_scale: one element of the master's dtype, 1 if not given. If it is not finite nothing
/// is changed. On one device the results have the same bits however a range is cut into ops (u8:
/// cut at ends of rows), as long as first_element tells where each op begins.
struct AdamW {
  static constexpr std::int64_t block = 256;  ///< elements per scale

  View master{};
  View first_moment;
  View second_moment;
  View grad;
  View working{};
  View remainder{};
  View gradient_scale{};
  View first_scale{};              ///< with u8 moments: [rows * blocks per row] f32
  View second_scale{};             ///< with u8 moments: same shape, for sqrt(v)
  std::int64_t row_length = 0;     ///< with u8 moments: elements per row; divides n
  std::uint64_t rounding_key = 0;  ///< for stochastic rounding; a new key every step
  std::int64_t first_element = 0;  ///< index in the run's stream of random numbers
  double rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double correction1 = 1;
  double correction2 = 1;
};
void launch_cpu(const AdamW& op);
void launch_cuda(const AdamW& op, Stream stream);

/// Updates of several runs of parameters, with the same coefficients but for the weight decay. On a
/// GPU one launch has many of them.
struct AdamWBatch {
  std::span<const AdamW> updates;
};
void launch_cpu(const AdamWBatch& op);
void launch_cuda(const AdamWBatch& op, Stream stream);

/// Throws Error if the arrays do not have one of the layouts above.
void check_layout(const AdamW& op);

}  // namespace sluice
