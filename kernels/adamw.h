#pragma once

#include <cstdint>

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// One AdamW update of a run of parameters that share a weight decay (Loshchilov & Hutter, 2019,
/// algorithm 2):
///   g = gradient_scale * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
///   w -= rate * weight_decay * w;  w -= rate * (m / c1) / (sqrt(v / c2) + epsilon)
/// with the bias corrections c1 = 1 - b1^step and c2 = 1 - b2^step. The weight takes m and v as
/// computed, before they are rounded into their arrays.
///
/// All arrays: [n]; in f64 all of them, else:
///   grad            f32 or bf16
///   weights         f32 `master`, and if given `working`, which receives the weight as f32, f16 or
///                   bf16 (rounded half away from zero); or, with `remainder` (i16), no master:
///                   bf16 working and remainder are its two halves (kernels/base/split_master.h),
///                   and the results are the same to the bit
///   moments (m, v)  (f32, f32), (bf16, f32), (bf16, bf16) or (u8, u8)
/// bf16 moments are rounded stochastically: rounded to nearest, a change of less than 2^-9 of what
/// is there would be lost, step after step.
/// u8 moments hold m and sqrt(v) (of which half the decades are enough) as codes of the dynamic
/// maps (kernels/base/dynamic_map.h), rounded stochastically, in blocks of 256 elements that do not
/// cross a row: ceil(row_length / 256) blocks a row, the last one shorter. A block's scale, the
/// largest magnitude in it, is what 1 in the map stands for. A number that is not finite makes that
/// of its whole block so.
///
/// gradient_scale: one element of the master's dtype, 1 if not given; where it is not finite
/// nothing is changed. The bits of a device's results do not depend on how a range is cut into ops
/// (u8: at ends of rows), as long as first_element tells where each begins.
struct AdamW {
  static constexpr std::int64_t block = 256;  ///< elements under one scale

  View master{};
  View first_moment;
  View second_moment;
  View grad;
  View working{};
  View remainder{};
  View gradient_scale{};
  View first_scale{};              ///< with u8 moments: [rows * blocks a row] f32
  View second_scale{};             ///< likewise, of sqrt(v)
  std::int64_t row_length = 0;     ///< with u8 moments: elements of a row; divides n
  std::uint64_t rounding_key = 0;  ///< of stochastic rounding; another one every step
  std::int64_t first_element = 0;  ///< of its random numbers in the run's stream
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

/// Throws Error where the arrays are not one of the layouts above.
void check_layout(const AdamW& op);

}  // namespace sluice
