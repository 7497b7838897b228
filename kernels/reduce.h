#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// out = scale * sum of all elements of in (plus out, with `accumulate`), summed in f64 in order.
/// in: f32 or f64; out: one element of the same dtype.
struct Sum {
  View out;
  View in;
  double scale = 1;
  bool accumulate = false;
};
void launch_cpu(const Sum& op);
void launch_cuda(const Sum& op, Stream stream);

}  // namespace sluice
