#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace sluice {

/// out = a + b, elementwise, all of one dtype; out may be a or b.
struct Add {
  View out;
  View a;
  View b;
};
void launch_cpu(const Add& op);
void launch_cuda(const Add& op, Stream stream);

/// out = in, converted to out's dtype. bf16 from f32 rounds ties to even, or with `half_away` ties
/// away from zero, as working weights are derived from their master.
struct Cast {
  View out;
  View in;
  bool half_away = false;
};
void launch_cpu(const Cast& op);
void launch_cuda(const Cast& op, Stream stream);

/// out = value
struct Fill {
  View out;
  double value = 0;
};
void launch_cpu(const Fill& op);
void launch_cuda(const Fill& op, Stream stream);

}  // namespace sluice
