#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// One AdamW update of a run of parameters that share a weight decay (Loshchilov & Hutter, 2019,
/// algorithm 2):
///   g = gradient_scale * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
///   w -= rate * weight_decay * w;  w -= rate * (m / c1) / (sqrt(v / c2) + epsilon)
/// with the bias corrections c1 = 1 - b1^step and c2 = 1 - b2^step.
/// master, first_moment, second_moment, grad: [n], f32 (or all f64). `working`, if given, receives
/// the weight in its own dtype (bf16 rounded half away from zero). gradient_scale: one element of
/// the master's dtype, 1 if not given; where it is not finite nothing is changed.
/// With `remainder` ([n] i16) there is no `master`: bf16 `working` and remainder are its two halves
/// (kernels/base/split_master.h), and the results are the same to the bit.
struct AdamW {
  View master{};
  View first_moment;
  View second_moment;
  View grad;
  View working{};
  View remainder{};
  View gradient_scale{};
  View first_scale{};
  View second_scale{};
  std::int64_t row_length = 0;
  std::uint64_t rounding_key = 0;
  std::int64_t first_element = 0;
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

}  // namespace sluice
