#pragma once

#include "kernels/base/view.h"

namespace sluice {

/// out = a + b, element by element, one dtype; out may be a or b.
struct Add {
  View out;
  View a;
  View b;
};
void launch_cpu(const Add& op);

/// out = in in out's dtype. bf16 from f32: ties to even, or away from zero as working weights
/// are derived from their master (`half_away`).
struct Cast {
  View out;
  View in;
  bool half_away = false;
};
void launch_cpu(const Cast& op);

/// out = value
struct Fill {
  View out;
  double value = 0;
};
void launch_cpu(const Fill& op);

}  // namespace sluice
