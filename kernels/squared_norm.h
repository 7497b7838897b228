#pragma once

#include <cstdint>

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// partial[i] = sum of squares of the i-th block of `block` elements of `in`. The blocks are fixed
/// by the parameters, not by threads or ranks; the norm adds the partials in order. in: [n] f32,
/// bf16 or, on the CPU, f64; partial: [ceil(n / block)] f64.
struct SquaredNorm {
  View partial;
  View in;
  std::int64_t block = 1 << 16;
};
void launch_cpu(const SquaredNorm& op);
void launch_cuda(const SquaredNorm& op, Stream stream);

}  // namespace sluice
